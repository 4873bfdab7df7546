/* Arrays of the caller: opened, and refused where dtype, shape or layout are not what a kernel needs. */
#ifndef METTA_ARRAYS_H
#define METTA_ARRAYS_H

#include <Python.h>

#include <stdint.h>
#include <string.h>

enum { LONGEST = 3 };
enum { ANY_LENGTH = -1 };

/* kind: 'q' int64, 'i' int32, 'B' uint8, '?' bool, 'f' float32, 'd' float64 */
typedef struct {
    const char *name;
    char kind;
    int writable, ndim;
    Py_ssize_t shape[LONGEST];
} Expected;

static char kind_of(const Py_buffer *view)
{
    const char *format = view->format ? view->format : "B";
    if (format[0] == '@' || format[0] == '=')
        ++format;
    if (format[0] == '\0' || format[1] != '\0')
        return 0;
    if (strchr("lqi", format[0]))
        return view->itemsize == 8 ? 'q' : (view->itemsize == 4 ? 'i' : 0);
    return format[0];
}

static int open_array(PyObject *object, const Expected *expected, Py_buffer *view)
{
    if (PyObject_GetBuffer(object, view, expected->writable ? PyBUF_RECORDS : PyBUF_RECORDS_RO) < 0)
        return -1;
    const char *problem = NULL;
    if (kind_of(view) != expected->kind)
        problem = "has another dtype";
    else if (view->ndim != expected->ndim)
        problem = "has another number of dimensions";
    else if (!PyBuffer_IsContiguous(view, 'C'))
        problem = "is not C-contiguous";
    for (int axis = 0; !problem && axis < expected->ndim; ++axis)
        if (expected->shape[axis] >= 0 && view->shape[axis] != expected->shape[axis])
            problem = "has another shape";
    if (!problem)
        return 0;
    PyErr_Format(PyExc_ValueError, "%s %s than this kernel needs (kind '%c', %d dimensions)",
                 expected->name, problem, expected->kind, expected->ndim);
    PyBuffer_Release(view);
    return -1;
}

static void release(Py_buffer *views, int count)
{
    while (count-- > 0)
        PyBuffer_Release(&views[count]);
}

#endif
