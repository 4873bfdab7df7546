/* Many grid worlds in C: the rules are in _world.h and _rules.h, and this file lets Python call them.
 *
 * Nothing of the caller's memory is touched before every array's dtype, shape and layout were checked,
 * and every number in it that is used as an index. Nothing is allocated. The GIL is released.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "../_fused.h"
#include "_rules.h"

enum { NUM_WORLD_ARRAYS = 15, NUM_STEP_ARRAYS = 8 };

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
            return "next_tasks holds a number that is not a task";
        if (is_reset)
            continue;
        if (worlds->tasks[index] < 0 || worlds->tasks[index] >= worlds->num_tasks)
            return "tasks holds a number that is not a task";
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

static const char NO_ROOM[] = "a world has no room for its agents";

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
                problem = NO_ROOM;
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

/* Where ends of episodes are written, beside the arrays of a step. */
typedef struct {
    const Worlds *worlds;
    uint8_t *final_obs;
    int32_t *counts;
} Ends;

/* The step of worlds first .. first + count - 1; the ends that occurred, or -1 without room for agents. */
static int step_worlds(const Ends *at_end, int64_t first, int64_t count, StepArrays step)
{
    const Worlds *worlds = at_end->worlds;
    const int64_t num_agents = worlds->num_agents, row_size = obs_size(worlds->radius);
    int ends = 0;
    for (int64_t i = 0; i < count; ++i) {
        const int64_t row = i * num_agents;
        const Outputs out = {
            .obs = (uint8_t *)step.obs + row * row_size,
            .final_obs = at_end->final_obs + row * row_size,
            .rewards = step.rewards + row,
            .terminated = step.terminated + row,
            .truncated = step.truncated + row,
            .starts = step.starts + row,
            .counts = at_end->counts + row * NUM_COUNTS,
        };
        const int end = step_world(worlds, first + i, step.actions + row, out);
        if (end < 0)
            return -1;
        ends |= end;
    }
    return ends;
}

static int step_all(void *envs, StepArrays step)
{
    const Ends *at_end = envs;
    return step_worlds(at_end, 0, at_end->worlds->num_worlds, step);
}

static const char *check_actions(const int64_t *actions, int64_t count)
{
    for (int64_t row = 0; row < count; ++row)
        if (actions[row] < 0 || actions[row] >= NUM_ACTIONS)
            return "actions holds a number that is not an action";
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
        if (!problem)
            problem = check_actions(outs[0].buf, n);
        if (!problem) {
            const StepArrays arrays = {outs[0].buf, outs[1].buf, outs[3].buf, outs[4].buf, outs[5].buf,
                                       outs[6].buf};
            const Ends at_end = {&worlds, outs[2].buf, outs[7].buf};
            Py_BEGIN_ALLOW_THREADS
            ends = step_worlds(&at_end, first, count, arrays);
            Py_END_ALLOW_THREADS
            problem = ends < 0 ? NO_ROOM : NULL;
        }
        if (problem)
            PyErr_SetString(PyExc_ValueError, problem);
    }
    release(outs, opened);
    release(views, NUM_WORLD_ARRAYS);
    return PyErr_Occurred() ? NULL : PyLong_FromLong(ends);
}

/* Steps of all worlds with an actor, until an episode ends, which Python must handle. */
static PyObject *run(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *tuple, *capsule, *rollout_tuple, *final_object, *counts_object;
    long radius;
    Py_ssize_t first;
    Py_buffer views[NUM_WORLD_ARRAYS], columns[NUM_ROLLOUT_ARRAYS], outs[2];
    Worlds worlds;
    Rollout rollout;
    if (!PyArg_ParseTuple(args, "OlOOnOO:run", &tuple, &radius, &capsule, &rollout_tuple, &first,
                          &final_object, &counts_object) ||
        open_worlds(tuple, radius, views, &worlds) < 0)
        return NULL;
    const Py_ssize_t num_rows = worlds.num_worlds * worlds.num_agents;
    const Expected final_obs = {"final_obs", 'B', 1, 2, {num_rows, obs_size(radius)}};
    const Expected counts = {"ended_counts", 'i', 1, 2, {num_rows, NUM_COUNTS}};
    const char *problem = check_indices(&worlds, 0, worlds.num_worlds, 0);
    int64_t next = -1;
    int opened = -1, ends = 0;
    if (!problem && open_rollout(capsule, rollout_tuple, 'B', obs_size(radius), num_rows, NUM_ACTIONS,
                                 columns, &rollout) == 0) {
        opened = open_array(final_object, &final_obs, &outs[0]) == 0;
        opened += opened && open_array(counts_object, &counts, &outs[1]) == 0;
    }
    if (opened == 2 && has_step(&rollout, first)) {
        Ends at_end = {&worlds, outs[0].buf, outs[1].buf};
        Py_BEGIN_ALLOW_THREADS
        next = run_fused(&rollout, first, step_all, &at_end, TERMINATED_END | TRUNCATED_END, &ends);
        Py_END_ALLOW_THREADS
        problem = next < 0 ? NO_ROOM : NULL;
    }
    if (opened >= 0) {
        release(outs, opened);
        release(columns, NUM_ROLLOUT_ARRAYS);
    }
    release(views, NUM_WORLD_ARRAYS);
    if (problem)
        PyErr_SetString(PyExc_ValueError, problem);
    return PyErr_Occurred() ? NULL : Py_BuildValue("Li", (long long)next, ends);
}

static PyMethodDef methods[] = {
    {"reset", reset, METH_VARARGS, "reset(worlds, view_radius, obs)"},
    {"refresh", refresh, METH_VARARGS, "refresh(worlds, view_radius)"},
    {"step", step, METH_VARARGS,
     "step(worlds, view_radius, first_world, actions, obs, final_obs, rewards, terminated, truncated,\n"
     "     starts, ended_counts) -> 1 where a world terminated, plus 2 where one was truncated"},
    {"run", run, METH_VARARGS,
     "run(worlds, view_radius, actor, rollout, first_step, final_obs, ended_counts) -> (next step, ends)"},
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
