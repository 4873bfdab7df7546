/* Backward sweeps over a rollout, for float32 and float64 arrays of shape [T, N].
 *
 * The formulas and their sources are in advantages.py. Each expression here is evaluated in the
 * array's own dtype and in the order of the fallback there: the two agree to the bit, so compile
 * without fused multiply-add. Inner loops run over N, the contiguous axis, and vectorise.
 *
 * Masked terms are selected away, not multiplied by zero: the value of a terminal state is never
 * used, whatever it holds.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

typedef struct {
    Py_ssize_t num_steps, num_envs;
    double gamma, gae_lambda, rho_clip, c_clip;
} Sweep;

#define DEFINE_KERNELS(real, suffix)                                                              \
    /* out = rewards + gamma * (terminated ? 0 : next_values) - values */                         \
    static void td_errors_##suffix(Py_ssize_t size, const real *restrict rewards,                 \
                                   const real *restrict values,                                   \
                                   const real *restrict next_values,                              \
                                   const unsigned char *restrict terminated, real gamma,          \
                                   real *restrict out)                                            \
    {                                                                                             \
        for (Py_ssize_t i = 0; i < size; ++i) {                                                   \
            const real next_value = next_values[i];                                               \
            const real bootstrap = terminated[i] ? (real)0 : next_value;                          \
            out[i] = rewards[i] + gamma * bootstrap - values[i];                                  \
        }                                                                                         \
    }                                                                                             \
                                                                                                  \
    static void gae_##suffix(const Sweep *sweep, const real *rewards, const real *values,         \
                             const real *next_values, const unsigned char *terminated,            \
                             const unsigned char *ended, real *advantages)                        \
    {                                                                                             \
        const Py_ssize_t num_envs = sweep->num_envs;                                              \
        const real gamma = (real)sweep->gamma;                                                    \
        const real decay = (real)(sweep->gamma * sweep->gae_lambda);                              \
        for (Py_ssize_t t = sweep->num_steps - 1; t >= 0; --t) {                                  \
            const Py_ssize_t at = t * num_envs;                                                   \
            real *restrict row = advantages + at;                                                 \
            td_errors_##suffix(num_envs, rewards + at, values + at, next_values + at,             \
                               terminated + at, gamma, row);                                      \
            if (t + 1 == sweep->num_steps)                                                        \
                continue;                                                                         \
            const real *restrict next_row = row + num_envs;                                       \
            const unsigned char *restrict ended_row = ended + at;                                 \
            for (Py_ssize_t n = 0; n < num_envs; ++n) {                                           \
                const real following = next_row[n];                                               \
                row[n] = row[n] + decay * (ended_row[n] ? (real)0 : following);                   \
            }                                                                                     \
        }                                                                                         \
    }                                                                                             \
                                                                                                  \
    /* targets - values, row by row from the last */                                              \
    static void vtrace_corrections_##suffix(                                                      \
        const Sweep *sweep, const real *rewards, const real *values, const real *next_values,     \
        const unsigned char *terminated, const unsigned char *ended, const real *ratios,          \
        real *corrections)                                                                        \
    {                                                                                             \
        const Py_ssize_t num_envs = sweep->num_envs;                                              \
        const real rho_clip = (real)sweep->rho_clip, c_clip = (real)sweep->c_clip;                \
        const real decay = (real)(sweep->gamma * sweep->gae_lambda);                              \
        for (Py_ssize_t t = sweep->num_steps - 1; t >= 0; --t) {                                  \
            const Py_ssize_t at = t * num_envs;                                                   \
            real *restrict row = corrections + at;                                                \
            const real *restrict ratio_row = ratios + at;                                         \
            td_errors_##suffix(num_envs, rewards + at, values + at, next_values + at,             \
                               terminated + at, (real)sweep->gamma, row);                         \
            for (Py_ssize_t n = 0; n < num_envs; ++n)                                             \
                row[n] = (ratio_row[n] > rho_clip ? rho_clip : ratio_row[n]) * row[n];            \
            if (t + 1 == sweep->num_steps)                                                        \
                continue;                                                                         \
            const real *restrict next_row = row + num_envs;                                       \
            const unsigned char *restrict ended_row = ended + at;                                 \
            for (Py_ssize_t n = 0; n < num_envs; ++n) {                                           \
                const real trace = decay * (ratio_row[n] > c_clip ? c_clip : ratio_row[n]);       \
                const real following = next_row[n];                                               \
                row[n] = row[n] + trace * (ended_row[n] ? (real)0 : following);                   \
            }                                                                                     \
        }                                                                                         \
    }                                                                                             \
                                                                                                  \
    static void vtrace_##suffix(const Sweep *sweep, const real *rewards, const real *values,      \
                                const real *next_values, const unsigned char *terminated,         \
                                const unsigned char *ended, const real *ratios,                   \
                                real *restrict advantages, real *restrict targets)                \
    {                                                                                             \
        const Py_ssize_t size = sweep->num_steps * sweep->num_envs;                               \
        const Py_ssize_t last_row = size - sweep->num_envs;                                       \
        const real gamma = (real)sweep->gamma, rho_clip = (real)sweep->rho_clip;                  \
        vtrace_corrections_##suffix(sweep, rewards, values, next_values, terminated, ended,       \
                                    ratios, targets);                                             \
        for (Py_ssize_t i = 0; i < size; ++i)                                                     \
            targets[i] = values[i] + targets[i];                                                  \
        for (Py_ssize_t i = 0; i < last_row; ++i) {                                               \
            const real inside = targets[i + sweep->num_envs], outside = next_values[i];           \
            const real next_target = ended[i] ? outside : inside;                                 \
            advantages[i] = rewards[i] + gamma * (terminated[i] ? (real)0 : next_target)          \
                            - values[i];                                                          \
        }                                                                                         \
        if (size > 0)                                                                             \
            td_errors_##suffix(sweep->num_envs, rewards + last_row, values + last_row,            \
                               next_values + last_row, terminated + last_row, gamma,              \
                               advantages + last_row);                                            \
        for (Py_ssize_t i = 0; i < size; ++i)                                                     \
            advantages[i] = (ratios[i] > rho_clip ? rho_clip : ratios[i]) * advantages[i];        \
    }

DEFINE_KERNELS(float, f32)
DEFINE_KERNELS(double, f64)

typedef struct {
    const char *name;
    enum { INPUT, MASK, OUTPUT } role;
    PyObject *object;
    Py_buffer view;
} Array;

/* 'f', 'd' or '?' for native floats, doubles or bools; 0 for others, also with a byte order. */
static char element_kind(const Py_buffer *view)
{
    const char *format = view->format ? view->format : "B";
    const size_t size = format[0] == 'f' ? sizeof(float) : format[0] == 'd' ? sizeof(double) : 1;
    const int known = format[0] == 'f' || format[0] == 'd' || format[0] == '?';
    return known && format[1] == '\0' && (size_t)view->itemsize == size ? format[0] : 0;
}

static int check_format(const Array *array, const Array *first)
{
    const char kind = element_kind(&array->view);
    const int is_real = (kind == 'f' || kind == 'd') && kind == element_kind(&first->view);
    if (array->role == MASK ? kind == '?' : is_real)
        return 0;
    PyErr_Format(PyExc_TypeError, "%s must hold %s, got buffer format '%s'", array->name,
                 array->role == MASK ? "booleans" : "float32 or float64, one dtype for all arrays",
                 array->view.format ? array->view.format : "B");
    return -1;
}

static int check_layout(const Array *array, const Array *first)
{
    const Py_buffer *view = &array->view;
    const Py_ssize_t *expected = first->view.shape;
    if (view->ndim != 2) {
        PyErr_Format(PyExc_ValueError, "%s must have two dimensions [T, N], got %d", array->name,
                     view->ndim);
        return -1;
    }
    if (view->shape[0] != expected[0] || view->shape[1] != expected[1]) {
        PyErr_Format(PyExc_ValueError, "%s has shape [%zd, %zd] but %s has shape [%zd, %zd]",
                     array->name, view->shape[0], view->shape[1], first->name, expected[0],
                     expected[1]);
        return -1;
    }
    if (!PyBuffer_IsContiguous(view, 'C')) {
        PyErr_Format(PyExc_ValueError, "%s must be C-contiguous", array->name);
        return -1;
    }
    if (array->role == OUTPUT && view->readonly) {
        PyErr_Format(PyExc_ValueError, "%s must be writable", array->name);
        return -1;
    }
    return 0;
}

static int check_no_overlap(const Array *output, const Array *other)
{
    const char *start = output->view.buf, *other_start = other->view.buf;
    if (start >= other_start + other->view.len || other_start >= start + output->view.len)
        return 0;
    PyErr_Format(PyExc_ValueError, "%s must not share memory with %s", output->name, other->name);
    return -1;
}

static void release_arrays(Array *arrays, int count)
{
    for (int i = 0; i < count; ++i)
        PyBuffer_Release(&arrays[i].view); /* does nothing for a view that was never filled */
}

/* Fills and checks every view; on failure none is held and an exception is set. */
static int acquire_arrays(Array *arrays, int count)
{
    for (int i = 0; i < count; ++i) {
        Array *array = &arrays[i];
        if (PyObject_GetBuffer(array->object, &array->view, PyBUF_RECORDS_RO) < 0) {
            if (PyErr_ExceptionMatches(PyExc_TypeError))
                PyErr_Format(PyExc_TypeError, "%s must support the buffer protocol, got %s",
                             array->name, Py_TYPE(array->object)->tp_name);
            goto fail;
        }
        if (check_format(array, &arrays[0]) < 0 || check_layout(array, &arrays[0]) < 0)
            goto fail;
    }
    for (int i = 0; i < count; ++i)
        for (int j = 0; j < count && arrays[i].role == OUTPUT; ++j)
            if (i != j && check_no_overlap(&arrays[i], &arrays[j]) < 0)
                goto fail;
    return 0;
fail:
    release_arrays(arrays, count);
    return -1;
}

enum { MAX_ARRAYS = 8 };

/* Acquires the arrays, sets the sweep's sizes and the data pointers; 'f', 'd', or 0 on failure. */
static char open_sweep(Array *arrays, int count, Sweep *sweep, void **data)
{
    if (acquire_arrays(arrays, count) < 0)
        return 0;
    for (int i = 0; i < count; ++i)
        data[i] = arrays[i].view.buf;
    sweep->num_steps = arrays[0].view.shape[0];
    sweep->num_envs = arrays[0].view.shape[1];
    return element_kind(&arrays[0].view);
}

static PyObject *gae(PyObject *Py_UNUSED(module), PyObject *args)
{
    Array arrays[] = {{.name = "rewards"}, {.name = "values"}, {.name = "next_values"},
                      {.name = "terminated", .role = MASK}, {.name = "episode_ended", .role = MASK},
                      {.name = "out", .role = OUTPUT}};
    const int count = sizeof arrays / sizeof arrays[0];
    Sweep sweep = {0};
    if (!PyArg_ParseTuple(args, "OOOOOddO:gae", &arrays[0].object, &arrays[1].object,
                          &arrays[2].object, &arrays[3].object, &arrays[4].object, &sweep.gamma,
                          &sweep.gae_lambda, &arrays[5].object))
        return NULL;
    void *data[MAX_ARRAYS];
    const char kind = open_sweep(arrays, count, &sweep, data);
    if (!kind)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    if (kind == 'f')
        gae_f32(&sweep, data[0], data[1], data[2], data[3], data[4], data[5]);
    else
        gae_f64(&sweep, data[0], data[1], data[2], data[3], data[4], data[5]);
    Py_END_ALLOW_THREADS
    release_arrays(arrays, count);
    Py_RETURN_NONE;
}

static PyObject *vtrace(PyObject *Py_UNUSED(module), PyObject *args)
{
    Array arrays[] = {{.name = "rewards"}, {.name = "values"}, {.name = "next_values"},
                      {.name = "terminated", .role = MASK}, {.name = "episode_ended", .role = MASK},
                      {.name = "ratios"}, {.name = "advantages_out", .role = OUTPUT},
                      {.name = "targets_out", .role = OUTPUT}};
    const int count = sizeof arrays / sizeof arrays[0];
    Sweep sweep = {0};
    if (!PyArg_ParseTuple(args, "OOOOOOddddOO:vtrace", &arrays[0].object, &arrays[1].object,
                          &arrays[2].object, &arrays[3].object, &arrays[4].object,
                          &arrays[5].object, &sweep.gamma, &sweep.gae_lambda, &sweep.rho_clip,
                          &sweep.c_clip, &arrays[6].object, &arrays[7].object))
        return NULL;
    void *data[MAX_ARRAYS];
    const char kind = open_sweep(arrays, count, &sweep, data);
    if (!kind)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    if (kind == 'f')
        vtrace_f32(&sweep, data[0], data[1], data[2], data[3], data[4], data[5], data[6], data[7]);
    else
        vtrace_f64(&sweep, data[0], data[1], data[2], data[3], data[4], data[5], data[6], data[7]);
    Py_END_ALLOW_THREADS
    release_arrays(arrays, count);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"gae", gae, METH_VARARGS,
     "gae(rewards, values, next_values, terminated, episode_ended, gamma, gae_lambda, out)"},
    {"vtrace", vtrace, METH_VARARGS,
     "vtrace(rewards, values, next_values, terminated, episode_ended, ratios, gamma, gae_lambda,\n"
     "       rho_clip, c_clip, advantages_out, targets_out)"},
    {NULL, NULL, 0, NULL}};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "metta.ops._native",
    .m_doc = "Advantage sweeps over C-contiguous float32 or float64 buffers of shape [T, N].",
    .m_size = 0,
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&definition);
}
