/* Many carts with poles in C; numpy_kernels.py does the same arithmetic, and the two agree to the bit.
 *
 * Nothing of the caller's memory is touched before every array's dtype, shape and layout were checked.
 * Nothing is allocated. The GIL is released.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "../_fused.h"

enum { NUM_CART_ARRAYS = 4, NUM_STEP_ARRAYS = 7, STATE_SIZE = 4, NUM_CART_ACTIONS = 2 };
enum { CHUNK = 64 };

#define GAMMA UINT64_C(0x9E3779B97F4A7C15)

static const double GRAVITY = 9.8, POLE_MASS = 0.1, TOTAL_MASS = 0.1 + 1.0, LENGTH = 0.5;
static const double POLE_MOMENT = 0.1 * 0.5, FORCE = 10.0, SECONDS = 0.02;
static const double FARTHEST = 2.4, STEEPEST = 12 * 2 * 3.141592653589793 / 360;

/* All carts: memory of the caller. */
typedef struct {
    int64_t num_rows, limit;
    double *state; /* [4, N]: place, speed, angle, turn */
    const int64_t *seeds;
    int64_t *episodes;
    int32_t *steps;
    float *final_obs; /* of the rows that are stepped */
} Carts;

/* splitmix64 (Steele, Lea and Flood 2014) */
static uint64_t mixed(uint64_t value)
{
    value = (value ^ (value >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    value = (value ^ (value >> 27)) * UINT64_C(0x94D049BB133111EB);
    return value ^ (value >> 31);
}

/* Four numbers from -0.05 to 0.05 that follow from a row's seed and the number of its episode. */
static void begin_episode(const Carts *carts, int64_t row)
{
    const uint64_t seed = (uint64_t)carts->seeds[row], episode = (uint64_t)carts->episodes[row];
    const uint64_t stream = mixed(mixed(seed + GAMMA) + episode * GAMMA);
    for (uint64_t part = 0; part < STATE_SIZE; ++part) {
        const uint64_t bits = mixed(stream + (part + 1) * GAMMA) >> 11;
        carts->state[(int64_t)part * carts->num_rows + row] = (double)bits * 0x1p-53 * 0.1 - 0.05;
    }
    carts->steps[row] = 0;
}

static void observe(const Carts *carts, int64_t row, float *out)
{
    for (int64_t part = 0; part < STATE_SIZE; ++part)
        out[part] = (float)carts->state[part * carts->num_rows + row];
}

/* Taylor series: within rounding for the angles of a pole that has not fallen. */
static inline double sine(double x)
{
    const double s = x * x;
    double sum = -1.0 / 1307674368000.0;
    sum = sum * s + 1.0 / 6227020800.0;
    sum = sum * s + -1.0 / 39916800.0;
    sum = sum * s + 1.0 / 362880.0;
    sum = sum * s + -1.0 / 5040.0;
    sum = sum * s + 1.0 / 120.0;
    sum = sum * s + -1.0 / 6.0;
    return x + x * (s * sum);
}

static inline double cosine(double x)
{
    const double s = x * x;
    double sum = 1.0 / 20922789888000.0;
    sum = sum * s + -1.0 / 87178291200.0;
    sum = sum * s + 1.0 / 479001600.0;
    sum = sum * s + -1.0 / 3628800.0;
    sum = sum * s + 1.0 / 40320.0;
    sum = sum * s + -1.0 / 720.0;
    sum = sum * s + 1.0 / 24.0;
    sum = sum * s + -1.0 / 2.0;
    return 1.0 + s * sum;
}

/* One step of Euler's method, as gymnasium's CartPole-v1 takes it. */
static void push(int64_t count, const double *restrict force, double *restrict place,
                 double *restrict speed, double *restrict angle, double *restrict turn)
{
    for (int64_t i = 0; i < count; ++i) {
        const double cos = cosine(angle[i]), sin = sine(angle[i]);
        const double pushed = (force[i] + POLE_MOMENT * (turn[i] * turn[i]) * sin) / TOTAL_MASS;
        const double turning = (GRAVITY * sin - cos * pushed) /
                               (LENGTH * (4.0 / 3.0 - POLE_MASS * (cos * cos) / TOTAL_MASS));
        const double speeding = pushed - POLE_MOMENT * turning * cos / TOTAL_MASS;
        place[i] = place[i] + SECONDS * speed[i];
        speed[i] = speed[i] + SECONDS * speeding;
        angle[i] = angle[i] + SECONDS * turn[i];
        turn[i] = turn[i] + SECONDS * turning;
    }
}

/* A step of rows first .. first + count - 1, but not yet their next episodes. */
static void move(const Carts *carts, int64_t first, int64_t count, StepArrays out)
{
    const int64_t n = carts->num_rows;
    double *state = carts->state + first, force[CHUNK];
    for (int64_t begin = 0; begin < count; begin += CHUNK) {
        const int64_t size = count - begin < CHUNK ? count - begin : CHUNK;
        for (int64_t i = 0; i < size; ++i)
            force[i] = out.actions[begin + i] ? FORCE : -FORCE;
        double *part = state + begin;
        push(size, force, part, part + n, part + 2 * n, part + 3 * n);
    }
    for (int64_t i = 0; i < count; ++i) {
        const double place = state[i], angle = state[2 * n + i];
        carts->steps[first + i] += 1;
        out.rewards[i] = 1.0f;
        out.terminated[i] = place < -FARTHEST || place > FARTHEST || angle < -STEEPEST || angle > STEEPEST;
        out.truncated[i] = carts->steps[first + i] >= carts->limit;
        out.starts[i] = out.terminated[i] | out.truncated[i];
    }
}

/* The step, and the next episode of the rows whose last one ended; the ends that Python must handle. */
static int step_carts(const Carts *carts, int64_t first, int64_t count, StepArrays out)
{
    int ends = 0;
    move(carts, first, count, out);
    for (int64_t i = 0; i < count; ++i) {
        if (out.starts[i]) {
            ends |= out.terminated[i] ? TERMINATED_END : TRUNCATED_END;
            if (!out.terminated[i])
                observe(carts, first + i, carts->final_obs + i * STATE_SIZE);
            carts->episodes[first + i] += 1;
            begin_episode(carts, first + i);
        }
        observe(carts, first + i, (float *)out.obs + i * STATE_SIZE);
    }
    return ends;
}

static int step_all(void *envs, StepArrays out)
{
    const Carts *carts = envs;
    return step_carts(carts, 0, carts->num_rows, out);
}

/* Opens (state, seeds, episodes, steps); -1 with an exception set. */
static int open_carts(PyObject *tuple, Py_ssize_t limit, Py_buffer *views, Carts *carts)
{
    if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != NUM_CART_ARRAYS) {
        PyErr_Format(PyExc_TypeError, "carts must be a tuple of %d arrays", NUM_CART_ARRAYS);
        return -1;
    }
    if (limit < 1 || limit > INT32_MAX / 2) {
        PyErr_SetString(PyExc_ValueError, "max_episode_steps is out of range");
        return -1;
    }
    Py_ssize_t n = ANY_LENGTH;
    for (int i = 0; i < NUM_CART_ARRAYS; ++i) {
        const Expected expected[NUM_CART_ARRAYS] = {
            {"state", 'd', 1, 2, {STATE_SIZE, ANY_LENGTH}}, {"seeds", 'q', 0, 1, {n}},
            {"episodes", 'q', 1, 1, {n}}, {"steps", 'i', 1, 1, {n}},
        };
        if (open_array(PyTuple_GET_ITEM(tuple, i), &expected[i], &views[i]) < 0) {
            release(views, i);
            return -1;
        }
        n = views[0].shape[1];
    }
    *carts = (Carts){
        .num_rows = n, .limit = limit, .state = views[0].buf, .seeds = views[1].buf,
        .episodes = views[2].buf, .steps = views[3].buf,
    };
    for (Py_ssize_t row = 0; row < n; ++row)
        if (carts->steps[row] < 0 || carts->steps[row] > INT32_MAX / 2) {
            PyErr_SetString(PyExc_ValueError, "steps holds an impossible number");
            release(views, NUM_CART_ARRAYS);
            return -1;
        }
    return 0;
}

static PyObject *reset(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *tuple, *obs_object;
    Py_ssize_t limit;
    Py_buffer views[NUM_CART_ARRAYS], obs;
    Carts carts;
    if (!PyArg_ParseTuple(args, "OnO:reset", &tuple, &limit, &obs_object) ||
        open_carts(tuple, limit, views, &carts) < 0)
        return NULL;
    const Expected expected = {"obs", 'f', 1, 2, {carts.num_rows, STATE_SIZE}};
    if (open_array(obs_object, &expected, &obs) < 0) {
        release(views, NUM_CART_ARRAYS);
        return NULL;
    }
    for (int64_t row = 0; row < carts.num_rows; ++row) {
        carts.episodes[row] = 0;
        begin_episode(&carts, row);
        observe(&carts, row, (float *)obs.buf + row * STATE_SIZE);
    }
    PyBuffer_Release(&obs);
    release(views, NUM_CART_ARRAYS);
    Py_RETURN_NONE;
}

static const char *check_step(const Carts *carts, Py_ssize_t first, Py_ssize_t count, const int64_t *actions)
{
    if (first < 0 || first > carts->num_rows - count)
        return "actions are not those of rows that exist";
    for (Py_ssize_t i = 0; i < count; ++i)
        if (actions[i] < 0 || actions[i] >= NUM_CART_ACTIONS)
            return "actions holds a number that is not an action";
    return NULL;
}

static PyObject *step(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *tuple, *objects[NUM_STEP_ARRAYS];
    Py_ssize_t first, limit, n = ANY_LENGTH;
    Py_buffer views[NUM_CART_ARRAYS], outs[NUM_STEP_ARRAYS];
    Carts carts;
    if (!PyArg_ParseTuple(args, "OnnOOOOOOO:step", &tuple, &limit, &first, &objects[0], &objects[1],
                          &objects[2], &objects[3], &objects[4], &objects[5], &objects[6]) ||
        open_carts(tuple, limit, views, &carts) < 0)
        return NULL;
    int opened = 0, ends = 0;
    for (; opened < NUM_STEP_ARRAYS; ++opened) {
        const Expected expected[NUM_STEP_ARRAYS] = {
            {"actions", 'q', 0, 1, {n}}, {"obs", 'f', 1, 2, {n, STATE_SIZE}},
            {"final_obs", 'f', 1, 2, {n, STATE_SIZE}}, {"rewards", 'f', 1, 1, {n}},
            {"terminated", '?', 1, 1, {n}}, {"truncated", '?', 1, 1, {n}}, {"starts", '?', 1, 1, {n}},
        };
        if (open_array(objects[opened], &expected[opened], &outs[opened]) < 0)
            break;
        n = outs[0].shape[0];
    }
    if (opened == NUM_STEP_ARRAYS) {
        const char *problem = check_step(&carts, first, n, outs[0].buf);
        if (problem) {
            PyErr_SetString(PyExc_ValueError, problem);
        } else {
            const StepArrays out = {outs[0].buf, outs[1].buf, outs[3].buf, outs[4].buf, outs[5].buf,
                                    outs[6].buf};
            carts.final_obs = outs[2].buf;
            Py_BEGIN_ALLOW_THREADS
            ends = step_carts(&carts, first, n, out);
            Py_END_ALLOW_THREADS
        }
    }
    release(outs, opened);
    release(views, NUM_CART_ARRAYS);
    return PyErr_Occurred() ? NULL : PyLong_FromLong(ends);
}

static PyObject *run(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *tuple, *capsule, *rollout_tuple, *final_object;
    Py_ssize_t first, limit;
    Py_buffer views[NUM_CART_ARRAYS], columns[NUM_ROLLOUT_ARRAYS], final_obs;
    Carts carts;
    Rollout rollout;
    if (!PyArg_ParseTuple(args, "OnOOnO:run", &tuple, &limit, &capsule, &rollout_tuple, &first,
                          &final_object) ||
        open_carts(tuple, limit, views, &carts) < 0)
        return NULL;
    int64_t next = -1;
    int ends = 0;
    const Expected expected = {"final_obs", 'f', 1, 2, {carts.num_rows, STATE_SIZE}};
    if (open_rollout(capsule, rollout_tuple, 'f', STATE_SIZE, carts.num_rows, NUM_CART_ACTIONS, columns,
                     &rollout) == 0) {
        if (has_step(&rollout, first) && open_array(final_object, &expected, &final_obs) == 0) {
            carts.final_obs = final_obs.buf;
            Py_BEGIN_ALLOW_THREADS
            next = run_fused(&rollout, first, step_all, &carts, TRUNCATED_END, &ends);
            Py_END_ALLOW_THREADS
            PyBuffer_Release(&final_obs);
        }
        release(columns, NUM_ROLLOUT_ARRAYS);
    }
    release(views, NUM_CART_ARRAYS);
    return PyErr_Occurred() ? NULL : Py_BuildValue("Li", (long long)next, ends);
}

static PyMethodDef methods[] = {
    {"reset", reset, METH_VARARGS, "reset(carts, max_episode_steps, obs)"},
    {"step", step, METH_VARARGS,
     "step(carts, max_episode_steps, first_row, actions, obs, final_obs, rewards, terminated, truncated,\n"
     "     starts) -> 1 where a row terminated, plus 2 where one was only truncated"},
    {"run", run, METH_VARARGS,
     "run(carts, max_episode_steps, actor, rollout, first_step, final_obs) -> (next step, ends)"},
    {NULL, NULL, 0, NULL}};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "metta.envs.cartpole._native",
    .m_doc = "Carts with poles over C-contiguous arrays.",
    .m_size = 0,
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&definition);
}
