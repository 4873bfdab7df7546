/* The action branch of a feed-forward policy in C: observations in, distribution parameters or actions out.
 *
 * A network is a capsule that holds copies of its weights, and is never changed: new weights are a new
 * network. Nothing of the caller's memory is touched before every array's dtype, shape and layout were
 * checked. Calls from Python hold the GIL, since a network works in its own memory; fused rollouts call
 * `act` without it, and need the network for themselves.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <math.h>
#include <string.h>

#include "../envs/_arrays.h"
#include "../envs/_fused_actor.h"

enum { BLOCK_ROWS = 4, BLOCK_OUTPUTS = 16, ALIGNMENT = 64 };
enum { MOST_STEPS = 64, MOST_FEATURES = 1 << 20 };
enum { LINEAR, TANH, RELU, SIGMOID, SILU, ELU, NUM_KINDS };

typedef struct {
    int kind;
    int64_t inputs, outputs;
    float alpha; /* of ELU */
    float *weights; /* [padded(outputs) / BLOCK_OUTPUTS, inputs + 1, BLOCK_OUTPUTS], the last input's are 0 */
    float *bias;    /* [padded(outputs)] */
} Step;

typedef struct Network {
    FusedActor actor; /* first: a pointer to the network is one to it */
    int64_t num_steps, num_outputs;
    Step steps[MOST_STEPS];
    float *shift, *scale; /* [num_inputs] or NULL */
    float clip;
    int64_t *firsts, *categories, *offsets; /* [num_inputs] of discrete codes */
    int codes;                              /* whether inputs are such codes */
    int32_t *places;                        /* [BLOCK_ROWS, num_inputs] */
    float *scratch[2];                      /* [BLOCK_ROWS, padded(widest)] */
    const float *(*run)(const struct Network *network);
    void *blocks[3 * MOST_STEPS];
    int num_blocks;
} Network;

static inline int64_t padded(int64_t count)
{
    return (count + BLOCK_OUTPUTS - 1) / BLOCK_OUTPUTS * BLOCK_OUTPUTS;
}

/* x * p(x^2) / q(x^2), a minimax fit: within 3e-7 of tanh, and 1 beyond the clip; NaN stays NaN */
static inline float tanh_of(float value)
{
    const float edge = 7.90531110763549805f;
    const float low = value < -edge ? -edge : value, x = low > edge ? edge : low, square = x * x;
    float top = -2.76076847742355e-16f;
    top = top * square + 2.00018790482477e-13f;
    top = top * square + -8.60467152213735e-11f;
    top = top * square + 5.12229709037114e-08f;
    top = top * square + 1.48572235717979e-05f;
    top = top * square + 6.37261928875436e-04f;
    top = top * square + 4.89352455891786e-03f;
    float bottom = 1.19825839466702e-06f;
    bottom = bottom * square + 1.18534705686654e-04f;
    bottom = bottom * square + 2.26843463243900e-03f;
    bottom = bottom * square + 4.89352518554385e-03f;
    return x * top / bottom;
}

/* 2^n * e^r with |r| <= log(2) / 2 (Cephes); infinity and 0 beyond the range; NaN stays NaN */
static inline float exp_of(float x)
{
    const float round = 12582912.0f; /* 1.5 * 2^23: whole numbers end up in the lowest bits */
    const float shifted = x * 1.44269504088896341f + round, whole = shifted - round;
    const float rest = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
    float series = 1.9875691500e-4f;
    series = series * rest + 1.3981999507e-3f;
    series = series * rest + 8.3334519073e-3f;
    series = series * rest + 4.1665795894e-2f;
    series = series * rest + 1.6666665459e-1f;
    series = series * rest + 5.0000001201e-1f;
    series = series * (rest * rest) + rest + 1.0f;
    union {
        float number;
        uint32_t bits;
    } power = {.number = shifted};
    power.bits = (power.bits << 23) + 0x3f800000u;
    const float inside = series * power.number;
    const float low = x < -87.0f ? 0.0f : inside;
    return x > 88.0f ? INFINITY : low;
}

#if defined(__GNUC__)
#define LANES 4
#else
#define LANES 1
#endif
#define TARGET
#define NAME(name) name##_portable
#include "_network.h"
#undef LANES
#undef TARGET
#undef NAME

#if defined(__GNUC__) && defined(__x86_64__)
#define HAS_WIDE 1
#define LANES 8
#define TARGET __attribute__((target("avx2,fma")))
#define NAME(name) name##_wide
#include "_network.h"
#undef LANES
#undef TARGET
#undef NAME
#else
#define HAS_WIDE 0
#endif

/* --- a block of rows ------------------------------------------------------------------------------- */

#define EACH_KIND(DO)                                                                              \
    DO('f', float) DO('d', double) DO('B', uint8_t) DO('?', uint8_t) DO('b', int8_t)               \
    DO('h', int16_t) DO('H', uint16_t) DO('i', int32_t) DO('I', uint32_t) DO('q', int64_t)         \
    DO('Q', uint64_t)

static Py_ssize_t size_of_kind(char kind)
{
#define SIZE(letter, type) case letter: return sizeof(type);
    switch (kind) {
        EACH_KIND(SIZE)
    default: return 0;
    }
#undef SIZE
}

static void load_floats(const Network *network, char kind, const void *obs, float *values)
{
    const int64_t count = network->actor.num_inputs;
#define LOAD(letter, type)                                                                         \
    case letter:                                                                                   \
        for (int64_t i = 0; i < count; ++i)                                                        \
            values[i] = (float)((const type *)obs)[i];                                             \
        break;
    switch (kind) {
        EACH_KIND(LOAD)
    default: break;
    }
#undef LOAD
    if (!network->shift)
        return;
    const float clip = network->clip;
    for (int64_t i = 0; i < count; ++i) {
        const float scaled = (values[i] - network->shift[i]) / network->scale[i];
        const float low = scaled < -clip ? -clip : scaled;
        values[i] = low > clip ? clip : low;
    }
}

/* Where in the one-hot code each number sets its 1; numbers out of range set none, at the row of zeros. */
static void load_places(const Network *network, char kind, const void *obs, int32_t *places)
{
    const int64_t count = network->actor.num_inputs, none = network->steps[0].inputs;
#define LOAD(letter, type)                                                                         \
    case letter:                                                                                   \
        for (int64_t i = 0; i < count; ++i) {                                                      \
            const int64_t code = (int64_t)((const type *)obs)[i] - network->firsts[i];             \
            const int known = code >= 0 && code < network->categories[i];                          \
            places[i] = (int32_t)(known ? network->offsets[i] + code : none);                      \
        }                                                                                          \
        break;
    switch (kind) {
        EACH_KIND(LOAD)
    default: break;
    }
#undef LOAD
}

/* Parameters [BLOCK_ROWS, padded(num_outputs)] of `count` rows from `first` on. */
static const float *block_params(const Network *network, char kind, const void *obs, int64_t first,
                                 int64_t count)
{
    const int64_t width = network->actor.num_inputs;
    for (int64_t row = 0; row < BLOCK_ROWS; ++row) {
        const int64_t taken = first + (row < count ? row : count - 1);
        const char *source = (const char *)obs + taken * width * size_of_kind(kind);
        if (network->codes)
            load_places(network, kind, source, network->places + row * width);
        else
            load_floats(network, kind, source, network->scratch[0] + row * padded(width));
    }
    return network->run(network);
}

/* Parameters [num_rows, num_outputs] of all rows. */
static void all_params(const Network *network, char kind, const void *obs, int64_t num_rows, float *params)
{
    const int64_t count = network->num_outputs;
    for (int64_t first = 0; first < num_rows; first += BLOCK_ROWS) {
        const int64_t rows = num_rows - first < BLOCK_ROWS ? num_rows - first : BLOCK_ROWS;
        const float *found = block_params(network, kind, obs, first, rows);
        for (int64_t row = 0; row < rows; ++row)
            memcpy(params + (first + row) * count, found + row * padded(count), (size_t)count * sizeof(float));
    }
}

/* The first of the largest; NaN counts as larger than every number, as in torch. */
static int64_t best_of(const float *params, const float *noise, const uint8_t *mask, int64_t count)
{
    const float masked = -1e9f;
    int64_t best = 0;
    float highest = 0.0f;
    for (int64_t i = 0; i < count; ++i) {
        const float score = (mask && !mask[i] ? masked : params[i]) + noise[i];
        if (i == 0 || score > highest || (score != score && highest == highest))
            best = i, highest = score;
    }
    return best;
}

static void act(const FusedActor *actor, char kind, const void *obs, const float *noise,
                const uint8_t *mask, int64_t num_rows, int64_t *actions, float *params)
{
    const int64_t count = actor->num_actions;
    all_params((const Network *)actor, kind, obs, num_rows, params);
    for (int64_t row = 0; row < num_rows; ++row) {
        const int64_t at = row * count;
        actions[row] = best_of(params + at, noise + at, mask ? mask + at : NULL, count);
    }
}

/* --- from Python ----------------------------------------------------------------------------------- */

/* Zeroed and aligned memory that lives as long as the network; NULL with an exception set. */
static void *reserve(Network *network, int64_t bytes)
{
    char *block = network->num_blocks < (int)(sizeof network->blocks / sizeof network->blocks[0])
                      ? calloc(1, (size_t)bytes + ALIGNMENT) : NULL;
    if (!block) {
        PyErr_NoMemory();
        return NULL;
    }
    network->blocks[network->num_blocks++] = block;
    return block + (ALIGNMENT - (uintptr_t)block % ALIGNMENT);
}

static void release_network(Network *network)
{
    while (network->num_blocks > 0)
        free(network->blocks[--network->num_blocks]);
    free(network);
}

static void destroy(PyObject *capsule)
{
    release_network(PyCapsule_GetPointer(capsule, FUSED_ACTOR_CAPSULE));
}

/* Weights [outputs, inputs] and bias [outputs] or None, copied into blocks of outputs. */
static int copy_linear(Network *network, Step *step, int64_t inputs, PyObject *weight, PyObject *bias)
{
    Py_buffer view;
    if (open_array(weight, &(Expected){"weight", 'f', 0, 2, {ANY_LENGTH, inputs}}, &view) < 0)
        return -1;
    const int64_t outputs = view.shape[0], stride = padded(outputs);
    step->inputs = inputs, step->outputs = outputs;
    step->weights = reserve(network, (inputs + 1) * stride * (int64_t)sizeof(float));
    step->bias = reserve(network, stride * (int64_t)sizeof(float));
    if (step->weights && step->bias)
        for (int64_t output = 0; output < outputs; ++output) {
            const int64_t block = output / BLOCK_OUTPUTS, lane = output % BLOCK_OUTPUTS;
            float *target = step->weights + block * (inputs + 1) * BLOCK_OUTPUTS + lane;
            for (int64_t input = 0; input < inputs; ++input)
                target[input * BLOCK_OUTPUTS] = ((const float *)view.buf)[output * inputs + input];
        }
    PyBuffer_Release(&view);
    if (!step->weights || !step->bias || outputs < 1 || outputs > MOST_FEATURES)
        return -1;
    if (bias == Py_None)
        return 0;
    if (open_array(bias, &(Expected){"bias", 'f', 0, 1, {outputs}}, &view) < 0)
        return -1;
    memcpy(step->bias, view.buf, (size_t)view.len);
    PyBuffer_Release(&view);
    return 0;
}

/* A copy of an array [count] of 8- or 4-byte numbers. */
static void *copy_vector(Network *network, PyObject *object, const char *name, char kind, int64_t count)
{
    Py_buffer view;
    if (open_array(object, &(Expected){name, kind, 0, 1, {count}}, &view) < 0)
        return NULL;
    void *copy = reserve(network, view.len);
    if (copy)
        memcpy(copy, view.buf, (size_t)view.len);
    PyBuffer_Release(&view);
    return copy;
}

/* Starts and numbers of values of discrete inputs; returns the width of their one-hot code, or -1. */
static int64_t copy_codes(Network *network, PyObject *firsts, PyObject *categories)
{
    const int64_t count = network->actor.num_inputs;
    network->codes = 1;
    network->firsts = copy_vector(network, firsts, "firsts", 'q', count);
    network->categories = copy_vector(network, categories, "categories", 'q', count);
    network->offsets = reserve(network, count * (int64_t)sizeof(int64_t));
    network->places = reserve(network, BLOCK_ROWS * count * (int64_t)sizeof(int32_t));
    if (!network->firsts || !network->categories || !network->offsets || !network->places)
        return -1;
    int64_t width = 0;
    for (int64_t i = 0; i < count; ++i) {
        network->offsets[i] = width;
        if (network->categories[i] < 1 || network->categories[i] > MOST_FEATURES - width) {
            PyErr_SetString(PyExc_ValueError, "categories are out of range");
            return -1;
        }
        width += network->categories[i];
    }
    return width;
}

static int copy_steps(Network *network, PyObject *steps, int64_t width)
{
    int64_t widest = width;
    network->num_steps = PyList_GET_SIZE(steps);
    for (int64_t i = 0; i < network->num_steps; ++i) {
        Step *step = &network->steps[i];
        PyObject *weight, *bias;
        if (!PyArg_ParseTuple(PyList_GET_ITEM(steps, i), "ifOO", &step->kind, &step->alpha, &weight, &bias))
            return -1;
        const int misplaced = i == 0 && network->codes && step->kind != LINEAR;
        if (step->kind < 0 || step->kind >= NUM_KINDS || misplaced) {
            PyErr_SetString(PyExc_ValueError, "a step is of an unknown kind, or in the wrong place");
            return -1;
        }
        if (step->kind == LINEAR) {
            if (copy_linear(network, step, width, weight, bias) < 0)
                return -1;
            width = step->outputs;
        }
        widest = width > widest ? width : widest;
    }
    network->num_outputs = network->actor.num_actions = width;
    for (int side = 0; side < 2; ++side)
        if (!(network->scratch[side] = reserve(network, BLOCK_ROWS * padded(widest) * (int64_t)sizeof(float))))
            return -1;
    return 0;
}

static int is_wide(int portable)
{
#if HAS_WIDE
    return !portable && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
    (void)portable;
    return 0;
#endif
}

static PyObject *make(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_ssize_t num_inputs;
    PyObject *shift, *scale, *firsts, *categories, *steps;
    float clip;
    int portable;
    if (!PyArg_ParseTuple(args, "nOOfOOO!p:make", &num_inputs, &shift, &scale, &clip, &firsts, &categories,
                          &PyList_Type, &steps, &portable))
        return NULL;
    const int codes = firsts != Py_None;
    if (num_inputs < 1 || num_inputs > MOST_FEATURES || PyList_GET_SIZE(steps) > MOST_STEPS ||
        PyList_GET_SIZE(steps) < codes) {
        PyErr_SetString(PyExc_ValueError, "the network has too many or too few inputs or steps");
        return NULL;
    }
    Network *network = calloc(1, sizeof *network);
    if (!network)
        return PyErr_NoMemory();
    network->actor.num_inputs = num_inputs, network->actor.act = act, network->clip = clip;
    network->run = run_portable;
#if HAS_WIDE
    if (is_wide(portable))
        network->run = run_wide;
#endif
    int64_t width = num_inputs;
    if (codes)
        width = copy_codes(network, firsts, categories);
    else if (shift != Py_None &&
             (!(network->shift = copy_vector(network, shift, "shift", 'f', num_inputs)) ||
              !(network->scale = copy_vector(network, scale, "scale", 'f', num_inputs))))
        width = -1;
    PyObject *capsule = NULL;
    if (width > 0 && copy_steps(network, steps, width) == 0)
        capsule = PyCapsule_New(network, FUSED_ACTOR_CAPSULE, destroy);
    if (!capsule) {
        release_network(network);
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "the network cannot be run in C");
    }
    return capsule;
}

/* Opens obs, params, and where they are wanted actions, noise and mask; the network, or NULL with an
 * exception set. */
static const Network *open_call(PyObject *capsule, PyObject *const *objects, int count, Py_buffer *views)
{
    const Network *network = PyCapsule_GetPointer(capsule, FUSED_ACTOR_CAPSULE);
    Py_ssize_t rows = ANY_LENGTH;
    for (int i = 0; network && i < count; ++i) {
        const Py_ssize_t inputs = network->actor.num_inputs, outputs = network->num_outputs;
        const Expected expected[] = {
            {"obs", ANY_KIND, 0, ANY_LENGTH, {ANY_LENGTH, inputs}}, {"params", 'f', 1, 2, {rows, outputs}},
            {"actions", 'q', 1, 1, {rows}}, {"noise", 'f', 0, 2, {rows, outputs}},
            {"mask", '?', 0, 2, {rows, outputs}},
        };
        if (open_array(objects[i], &expected[i], &views[i]) < 0) {
            release(views, i);
            return NULL;
        }
        rows = views[0].shape[0];
    }
    return network;
}

static PyObject *forward(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *capsule, *objects[2];
    Py_buffer views[2];
    if (!PyArg_ParseTuple(args, "OOO:forward", &capsule, &objects[0], &objects[1]))
        return NULL;
    const Network *network = open_call(capsule, objects, 2, views);
    if (!network)
        return NULL;
    all_params(network, kind_of(&views[0]), views[0].buf, views[0].shape[0], views[1].buf);
    release(views, 2);
    Py_RETURN_NONE;
}

static PyObject *sample(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *capsule, *objects[5];
    Py_buffer views[5];
    if (!PyArg_ParseTuple(args, "OOOOOO:sample", &capsule, &objects[0], &objects[2], &objects[1], &objects[3],
                          &objects[4]))
        return NULL;
    const int has_mask = objects[4] != Py_None;
    const Network *network = open_call(capsule, objects, 4 + has_mask, views);
    if (!network)
        return NULL;
    act(&network->actor, kind_of(&views[0]), views[0].buf, views[3].buf, has_mask ? views[4].buf : NULL,
        views[0].shape[0], views[2].buf, views[1].buf);
    release(views, 4 + has_mask);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"make", make, METH_VARARGS,
     "make(num_inputs, shift, scale, clip, firsts, categories, steps, portable) -> network\n\n"
     "Steps are (kind, alpha, weight, bias); shift and scale, or firsts and categories, may be None."},
    {"forward", forward, METH_VARARGS, "forward(network, obs, params)"},
    {"sample", sample, METH_VARARGS, "sample(network, obs, actions, params, noise, mask)"},
    {NULL, NULL, 0, NULL}};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "metta.agent._native",
    .m_doc = "Feed-forward networks over C-contiguous arrays.",
    .m_size = 0,
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&definition);
}
