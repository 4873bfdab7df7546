/* Fused rollouts: actor and environment take turns in C, until a step needs Python.
 *
 * An environment gives a function that steps all of its rows, and sets which ends of episodes Python must
 * handle; the loop is here, once for all environments.
 */
#ifndef METTA_FUSED_H
#define METTA_FUSED_H

#include "_arrays.h"
#include "_fused_actor.h"

enum { NUM_ROLLOUT_ARRAYS = 8 };
enum { TERMINATED_END = 1, TRUNCATED_END = 2 };

/* What one step of all rows reads and writes. */
typedef struct {
    const int64_t *actions;
    void *obs;
    float *rewards;
    uint8_t *terminated, *truncated, *starts;
} StepArrays;

/* A rollout [T, N, ...], observations and starts [T + 1, N, ...]. */
typedef struct {
    int64_t num_steps, num_rows, row_bytes;
    char obs_kind;
    const FusedActor *actor;
    char *obs;
    const float *noise;
    int64_t *actions;
    float *rewards, *params;
    uint8_t *terminated, *truncated, *starts;
} Rollout;

/* Steps all rows: the ends that occurred, or -1 where it could not. */
typedef int (*StepAll)(void *envs, StepArrays step);

/* Opens (obs, noise, actions, rewards, terminated, truncated, starts, params); -1 with an exception set. */
static int open_rollout(PyObject *capsule, PyObject *tuple, char obs_kind, Py_ssize_t obs_size,
                        Py_ssize_t num_rows, Py_ssize_t num_actions, Py_buffer *views, Rollout *rollout)
{
    const FusedActor *actor = PyCapsule_GetPointer(capsule, FUSED_ACTOR_CAPSULE);
    if (!actor)
        return -1;
    if (actor->num_inputs != obs_size || actor->num_actions != num_actions) {
        PyErr_Format(PyExc_ValueError,
                     "the actor is for %lld numbers and %lld actions, but rows have %zd and %zd",
                     (long long)actor->num_inputs, (long long)actor->num_actions, obs_size, num_actions);
        return -1;
    }
    if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != NUM_ROLLOUT_ARRAYS) {
        PyErr_Format(PyExc_TypeError, "a rollout must be a tuple of %d arrays", NUM_ROLLOUT_ARRAYS);
        return -1;
    }
    Py_ssize_t t = ANY_LENGTH, n = num_rows;
    for (int i = 0; i < NUM_ROLLOUT_ARRAYS; ++i) {
        const Expected expected[NUM_ROLLOUT_ARRAYS] = {
            {"obs", obs_kind, 1, 3, {ANY_LENGTH, n, obs_size}}, {"noise", 'f', 0, 3, {t, n, num_actions}},
            {"actions", 'q', 1, 2, {t, n}}, {"rewards", 'f', 1, 2, {t, n}},
            {"terminated", '?', 1, 2, {t, n}}, {"truncated", '?', 1, 2, {t, n}},
            {"starts", '?', 1, 2, {t + 1, n}}, {"params", 'f', 1, 3, {t, n, num_actions}},
        };
        if (open_array(PyTuple_GET_ITEM(tuple, i), &expected[i], &views[i]) < 0) {
            release(views, i);
            return -1;
        }
        t = views[0].shape[0] - 1;
    }
    *rollout = (Rollout){
        .num_steps = t, .num_rows = n, .row_bytes = obs_size * views[0].itemsize, .obs_kind = obs_kind,
        .actor = actor, .obs = views[0].buf, .noise = views[1].buf, .actions = views[2].buf,
        .rewards = views[3].buf, .terminated = views[4].buf, .truncated = views[5].buf,
        .starts = views[6].buf, .params = views[7].buf,
    };
    return 0;
}

/* Whether a rollout can continue from step `first`; sets ValueError if it cannot. */
static int has_step(const Rollout *rollout, int64_t first)
{
    if (first >= 0 && first <= rollout->num_steps)
        return 1;
    PyErr_Format(PyExc_ValueError, "step %lld is not one of the %lld steps of the rollout",
                 (long long)first, (long long)rollout->num_steps);
    return 0;
}

/* Steps from `first` on; after the last step, or one with an end among `wanted`, the number of the next
 * step. `ends` holds the ends of the last step that was taken. -1 where a step failed. The
 * caller has asked `has_step`. */
static int64_t run_fused(const Rollout *rollout, int64_t first, StepAll step_all, void *envs, int wanted,
                         int *ends)
{
    const int64_t n = rollout->num_rows, obs_bytes = n * rollout->row_bytes;
    const FusedActor *actor = rollout->actor;
    for (int64_t t = first; t < rollout->num_steps; ++t) {
        actor->act(actor, rollout->obs_kind, rollout->obs + t * obs_bytes,
                   rollout->noise + t * n * actor->num_actions, NULL, n, rollout->actions + t * n,
                   rollout->params + t * n * actor->num_actions);
        const StepArrays step = {
            .actions = rollout->actions + t * n, .obs = rollout->obs + (t + 1) * obs_bytes,
            .rewards = rollout->rewards + t * n, .terminated = rollout->terminated + t * n,
            .truncated = rollout->truncated + t * n, .starts = rollout->starts + (t + 1) * n,
        };
        *ends = step_all(envs, step);
        if (*ends < 0)
            return -1;
        if (*ends & wanted)
            return t + 1;
    }
    return rollout->num_steps;
}

#endif
