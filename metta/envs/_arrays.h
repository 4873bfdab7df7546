/* Arrays of the caller: opened, and refused where dtype, shape or layout are not what a kernel needs. */
#ifndef METTA_ARRAYS_H
#define METTA_ARRAYS_H

#include <Python.h>

#include <stdint.h>
#include <string.h>

enum { LONGEST = 3 };
enum { ANY_LENGTH = -1, ANY_KIND = '*' };

/* kind: 'q' int64, 'i' int32, 'B' uint8, '?' bool, 'f' float32, 'd' float64, or any that `kind_of` knows;
 * ndim ANY_LENGTH: rows [shape[0], ...] of shape[1] elements */
typedef struct {
    const char *name;
    char kind;
    int writable, ndim;
    Py_ssize_t shape[LONGEST];
} Expected;

/* The struct format of the elements, whole numbers by their size; 0 if it is not a number format. */
static char kind_of(const Py_buffer *view)
{
    const char *format = view->format ? view->format : "B";
    if (format[0] == '@' || format[0] == '=')
        ++format;
    if (format[0] == '\0' || format[1] != '\0')
        return 0;
    if (strchr("lqi", format[0]))
        return view->itemsize == 8 ? 'q' : (view->itemsize == 4 ? 'i' : 0);
    if (strchr("LQI", format[0]))
        return view->itemsize == 8 ? 'Q' : (view->itemsize == 4 ? 'I' : 0);
    return strchr("fdB?bhH", format[0]) ? format[0] : 0;
}

static Py_ssize_t row_size(const Py_buffer *view)
{
    Py_ssize_t size = 1;
    for (int axis = 1; axis < view->ndim; ++axis)
        size *= view->shape[axis];
    return size;
}

static int open_array(PyObject *object, const Expected *expected, Py_buffer *view)
{
    if (PyObject_GetBuffer(object, view, expected->writable ? PyBUF_RECORDS : PyBUF_RECORDS_RO) < 0)
        return -1;
    const char kind = kind_of(view), *problem = NULL;
    const int is_rows = expected->ndim == ANY_LENGTH;
    if (!kind || (expected->kind != ANY_KIND && kind != expected->kind))
        problem = "dtype";
    else if (is_rows ? view->ndim < 1 : view->ndim != expected->ndim)
        problem = "number of dimensions";
    else if (!PyBuffer_IsContiguous(view, 'C'))
        problem = "layout";
    for (int axis = 0; !problem && axis < (is_rows ? 2 : expected->ndim); ++axis) {
        const Py_ssize_t length = is_rows && axis ? row_size(view) : view->shape[axis];
        if (expected->shape[axis] >= 0 && length != expected->shape[axis])
            problem = "shape";
    }
    if (!problem)
        return 0;
    PyErr_Format(PyExc_ValueError, "%s has another %s than this kernel needs (kind '%c')", expected->name,
                 problem, expected->kind);
    PyBuffer_Release(view);
    return -1;
}

static void release(Py_buffer *views, int count)
{
    while (count-- > 0)
        PyBuffer_Release(&views[count]);
}

#endif
