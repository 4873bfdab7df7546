/* Many grid worlds in C: the rules stand in _world.h and _rules.h, and this file lets Python call them.
 *
 * Nothing of the caller's memory is touched before every array's dtype, shape and layout were checked,
 * and every number in it that is used as an index. Nothing is allocated. The GIL is released.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "_rules.h"

enum { NUM_WORLD_ARRAYS = 15, NUM_STEP_ARRAYS = 8, LONGEST = 3 };
enum { ANY_LENGTH = -1 };

/* kind: 'q' int64, 'i' int32, 'B' uint8, '?' bool, 'f' float32 */
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

static int check_settings(const Worlds *worlds)
{
    const int64_t rows = worlds->rows - 2 * worlds->radius, stride = worlds->stride - 2 * worlds->radius;
    const int64_t height = rows < LARGEST_SIDE ? rows : LARGEST_SIDE;
    const int64_t width = stride < LARGEST_SIDE ? stride : LARGEST_SIDE;
    for (int64_t task = 0; task < worlds->num_tasks; ++task) {
        const int64_t *row = worlds->settings + task * NUM_SETTINGS;
        const int64_t bounds[NUM_SETTINGS][2] = {
            [WIDTH] = {5, width}, [HEIGHT] = {5, height},
            [HORIZON] = {1, INT32_MAX / 8}, [WALL_THRESHOLD] = {0, INT64_C(1) << 32},
            [RESOURCES] = {0, MOST_THINGS}, [DEPOTS] = {0, MOST_THINGS},
            [ROOMS] = {1, (row[WIDTH] - 1) / 3}, [KEYS] = {0, MOST_THINGS}, [CAPACITY] = {1, HIGHEST},
            [SHARED] = {0, 1}, [RESPAWNS] = {0, 1}, [GOAL] = {0, INT32_MAX},
        };
        for (int column = 0; column < NUM_SETTINGS; ++column)
            if (row[column] < bounds[column][0] || row[column] > bounds[column][1])
                return -1;
    }
    return 0;
}

/* Numbers inside the arrays that are used as indices, from world `first` on. */
static const char *check_indices(const Worlds *worlds, int64_t first, int64_t count, int is_reset)
{
    const int64_t margin = worlds->radius * worlds->stride + worlds->radius;
    const int64_t highest = worlds->rows * worlds->stride - 1 - margin;
    for (int64_t index = first; index < first + count; ++index) {
        if (worlds->next_tasks[index] < 0 || worlds->next_tasks[index] >= worlds->num_tasks)
            return "next_tasks holds a number that is no task";
        if (is_reset)
            continue;
        if (worlds->tasks[index] < 0 || worlds->tasks[index] >= worlds->num_tasks)
            return "tasks holds a number that is no task";
        if (worlds->steps[index] < 0 || worlds->steps[index] > INT32_MAX / 8)
            return "steps holds an impossible number";
        const int32_t *positions = worlds->positions + index * worlds->num_agents;
        for (int64_t agent = 0; agent < worlds->num_agents; ++agent)
            if (positions[agent] < margin || positions[agent] > highest)
                return "positions holds a place outside of the world";
    }
    return NULL;
}

/* Opens the tuple of world arrays in the order of layout.WorldArrays; -1 with an exception set. */
static int open_worlds(PyObject *tuple, long radius, Py_buffer *views, Worlds *worlds)
{
    if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != NUM_WORLD_ARRAYS) {
        PyErr_Format(PyExc_TypeError, "worlds must be a tuple of %d arrays", NUM_WORLD_ARRAYS);
        return -1;
    }
    if (radius < 1 || radius > WIDEST_VIEW) {
        PyErr_Format(PyExc_ValueError, "view_radius must be from 1 to %d", WIDEST_VIEW);
        return -1;
    }
    Py_ssize_t w = ANY_LENGTH, r = ANY_LENGTH, s = ANY_LENGTH, a = ANY_LENGTH, k = ANY_LENGTH;
    for (int i = 0; i < NUM_WORLD_ARRAYS; ++i) {
        const Expected expected[NUM_WORLD_ARRAYS] = {
            {"settings", 'q', 0, 2, {ANY_LENGTH, NUM_SETTINGS}},
            {"reward_table", 'f', 0, 2, {k, NUM_REWARDS}},
            {"seeds", 'q', 1, 1, {ANY_LENGTH}}, {"episodes", 'q', 1, 1, {w}}, {"draws", 'q', 1, 1, {w}},
            {"tasks", 'i', 1, 1, {w}}, {"next_tasks", 'i', 1, 1, {w}}, {"steps", 'i', 1, 1, {w}},
            {"missing", 'i', 1, 1, {w}}, {"cells", 'B', 1, 3, {w, ANY_LENGTH, ANY_LENGTH}},
            {"compass", 'B', 1, 3, {w, r, s}}, {"positions", 'i', 1, 2, {w, ANY_LENGTH}},
            {"cargo", 'i', 1, 2, {w, a}}, {"keys", 'i', 1, 2, {w, a}},
            {"counts", 'i', 1, 3, {w, a, NUM_COUNTS}},
        };
        if (open_array(PyTuple_GET_ITEM(tuple, i), &expected[i], &views[i]) < 0) {
            release(views, i);
            return -1;
        }
        const Py_ssize_t *shape = views[i].shape;
        switch (i) {
        case 0: k = shape[0]; break;
        case 2: w = shape[0]; break;
        case 9: r = shape[1], s = shape[2]; break;
        case 11: a = shape[1]; break;
        default: break;
        }
    }
    *worlds = (Worlds){
        .num_worlds = w, .num_agents = a, .radius = radius, .rows = r, .stride = s, .num_tasks = k,
        .settings = views[0].buf, .reward_table = views[1].buf, .seeds = views[2].buf,
        .episodes = views[3].buf, .draws = views[4].buf, .tasks = views[5].buf,
        .next_tasks = views[6].buf, .steps = views[7].buf, .missing = views[8].buf,
        .cells = views[9].buf, .compass = views[10].buf, .positions = views[11].buf,
        .cargo = views[12].buf, .keys = views[13].buf, .counts = views[14].buf,
    };
    const int64_t longest = LARGEST_SIDE + 2 * WIDEST_VIEW;
    if (a < 1 || a > MOST_AGENTS || r > longest || s > longest || check_settings(worlds) < 0) {
        PyErr_SetString(PyExc_ValueError, "settings, or the sizes of cells or positions, are out of range");
        release(views, NUM_WORLD_ARRAYS);
        return -1;
    }
    return 0;
}

static Py_ssize_t obs_size(long radius)
{
    return (2 * radius + 1) * (2 * radius + 1) + SELF_NUMBERS;
}

static PyObject *reset(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *tuple, *obs_object;
    long radius;
    Py_buffer views[NUM_WORLD_ARRAYS], obs;
    Worlds worlds;
    if (!PyArg_ParseTuple(args, "OlO:reset", &tuple, &radius, &obs_object) ||
        open_worlds(tuple, radius, views, &worlds) < 0)
        return NULL;
    const int64_t row_size = obs_size(radius), num_rows = worlds.num_worlds * worlds.num_agents;
    const Expected expected = {"obs", 'B', 1, 2, {num_rows, row_size}};
    if (open_array(obs_object, &expected, &obs) < 0) {
        release(views, NUM_WORLD_ARRAYS);
        return NULL;
    }
    const char *problem = check_indices(&worlds, 0, worlds.num_worlds, 1);
    if (!problem) {
        Py_BEGIN_ALLOW_THREADS
        for (int64_t index = 0; index < worlds.num_worlds && !problem; ++index) {
            worlds.episodes[index] = 0;
            if (begin_episode(&worlds, index) < 0) {
                problem = "a world has no room for its agents";
                break;
            }
            const World world = world_at(&worlds, index);
            observe(&world, (uint8_t *)obs.buf + index * worlds.num_agents * row_size);
        }
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&obs);
    release(views, NUM_WORLD_ARRAYS);
    if (problem) {
        PyErr_SetString(PyExc_ValueError, problem);
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *refresh(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *tuple;
    long radius;
    Py_buffer views[NUM_WORLD_ARRAYS];
    Worlds worlds;
    if (!PyArg_ParseTuple(args, "Ol:refresh", &tuple, &radius) ||
        open_worlds(tuple, radius, views, &worlds) < 0)
        return NULL;
    const char *problem = check_indices(&worlds, 0, worlds.num_worlds, 0);
    for (int64_t index = 0; index < worlds.num_worlds && !problem; ++index) {
        World world = world_at(&worlds, index);
        map_compass(&world);
    }
    release(views, NUM_WORLD_ARRAYS);
    if (problem) {
        PyErr_SetString(PyExc_ValueError, problem);
        return NULL;
    }
    Py_RETURN_NONE;
}

/* The step of worlds first .. first + count - 1; ORs what ended into `ends`. */
static const char *step_worlds(const Worlds *worlds, int64_t first, int64_t count,
                               const Py_buffer *views, int *ends)
{
    const int64_t num_agents = worlds->num_agents, row_size = obs_size(worlds->radius);
    const int64_t *actions = views[0].buf;
    for (int64_t row = 0; row < count * num_agents; ++row)
        if (actions[row] < 0 || actions[row] >= NUM_ACTIONS)
            return "actions holds a number that is no action";
    for (int64_t i = 0; i < count; ++i) {
        const int64_t row = i * num_agents;
        const Outputs out = {
            .obs = (uint8_t *)views[1].buf + row * row_size,
            .final_obs = (uint8_t *)views[2].buf + row * row_size,
            .rewards = (float *)views[3].buf + row,
            .terminated = (uint8_t *)views[4].buf + row,
            .truncated = (uint8_t *)views[5].buf + row,
            .starts = (uint8_t *)views[6].buf + row,
            .counts = (int32_t *)views[7].buf + row * NUM_COUNTS,
        };
        const int end = step_world(worlds, first + i, actions + row, out);
        if (end < 0)
            return "a world has no room for its agents";
        *ends |= end;
    }
    return NULL;
}

static PyObject *step(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *tuple, *objects[NUM_STEP_ARRAYS];
    long radius;
    Py_ssize_t first;
    Py_buffer views[NUM_WORLD_ARRAYS], outs[NUM_STEP_ARRAYS];
    Worlds worlds;
    if (!PyArg_ParseTuple(args, "OlnOOOOOOOO:step", &tuple, &radius, &first, &objects[0], &objects[1],
                          &objects[2], &objects[3], &objects[4], &objects[5], &objects[6],
                          &objects[7]) ||
        open_worlds(tuple, radius, views, &worlds) < 0)
        return NULL;
    Py_ssize_t n = ANY_LENGTH;
    int opened = 0;
    for (; opened < NUM_STEP_ARRAYS; ++opened) {
        const Expected expected[NUM_STEP_ARRAYS] = {
            {"actions", 'q', 0, 1, {n}}, {"obs", 'B', 1, 2, {n, obs_size(radius)}},
            {"final_obs", 'B', 1, 2, {n, obs_size(radius)}}, {"rewards", 'f', 1, 1, {n}},
            {"terminated", '?', 1, 1, {n}}, {"truncated", '?', 1, 1, {n}}, {"starts", '?', 1, 1, {n}},
            {"ended_counts", 'i', 1, 2, {n, NUM_COUNTS}},
        };
        if (open_array(objects[opened], &expected[opened], &outs[opened]) < 0)
            break;
        n = outs[0].shape[0];
    }
    const char *problem = NULL;
    int ends = 0;
    const int64_t count = n / worlds.num_agents;
    if (opened == NUM_STEP_ARRAYS) {
        if (count * worlds.num_agents != n || first < 0 || first > worlds.num_worlds - count)
            problem = "actions are not those of whole worlds that exist";
        else
            problem = check_indices(&worlds, first, count, 0);
        if (!problem) {
            Py_BEGIN_ALLOW_THREADS
            problem = step_worlds(&worlds, first, count, outs, &ends);
            Py_END_ALLOW_THREADS
        }
        if (problem)
            PyErr_SetString(PyExc_ValueError, problem);
    }
    release(outs, opened);
    release(views, NUM_WORLD_ARRAYS);
    return PyErr_Occurred() ? NULL : PyLong_FromLong(ends);
}

static PyMethodDef methods[] = {
    {"reset", reset, METH_VARARGS, "reset(worlds, view_radius, obs)"},
    {"refresh", refresh, METH_VARARGS, "refresh(worlds, view_radius)"},
    {"step", step, METH_VARARGS,
     "step(worlds, view_radius, first_world, actions, obs, final_obs, rewards, terminated, truncated,\n"
     "     starts, ended_counts) -> 1 where a world terminated, plus 2 where one was truncated"},
    {NULL, NULL, 0, NULL}};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "metta.envs.grid._native",
    .m_doc = "The grid world's kernels over C-contiguous arrays.",
    .m_size = 0,
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&definition);
}
