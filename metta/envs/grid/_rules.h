/* The rules of the grid world: one step of a world, and what its agents see.
 *
 * Rewards are one fixed float32 expression of counted events; everything else is integers.
 * numpy_kernels.py holds the same rules, and the two agree to the bit.
 */
#include "_world.h"

/* Where one world's step is written. */
typedef struct {
    uint8_t *obs, *final_obs, *terminated, *truncated, *starts;
    float *rewards;
    int32_t *counts;
} Outputs;

static inline void copy_view(const World *world, int64_t at, int64_t radius, uint8_t *out)
{
    const int64_t side = 2 * radius + 1;
    const uint8_t *corner = world->cells + at - radius * world->stride - radius;
    for (int64_t row = 0; row < side; ++row)
        memcpy(out + row * side, corner + row * world->stride, (size_t)side);
}

static inline void observe_with(const World *world, int64_t radius, uint8_t *out)
{
    const int64_t side = 2 * radius + 1, size = side * side;
    const int64_t passed = 8 * (int64_t)*world->step / world->settings[HORIZON];
    const uint8_t clock = (uint8_t)(passed > HIGHEST ? HIGHEST : passed);
    for (int64_t agent = 0; agent < world->num_agents; ++agent, out += size + SELF_NUMBERS) {
        const int64_t at = world->positions[agent];
        copy_view(world, at, radius, out);
        out[size / 2] = EMPTY;
        out[size] = (uint8_t)world->cargo[agent];
        out[size + 1] = (uint8_t)(world->keys[agent] > HIGHEST ? HIGHEST : world->keys[agent]);
        out[size + 2] = world->compass[at];
        out[size + 3] = clock;
    }
}

/* What every agent sees; a constant radius lets the compiler copy rows without calls. */
static void observe(const World *world, uint8_t *out)
{
    switch (world->radius) {
    case 1: observe_with(world, 1, out); break;
    case 2: observe_with(world, 2, out); break;
    case 3: observe_with(world, 3, out); break;
    case 4: observe_with(world, 4, out); break;
    default: observe_with(world, 5, out); break;
    }
}

/* One agent's turn; what it did is added to `counts`. */
static void act(World *world, int64_t agent, int64_t action, int32_t *counts)
{
    const int64_t moves[NUM_ACTIONS] = {0, -world->stride, 1, world->stride, -1};
    if (!action)
        return;
    const int64_t from = world->positions[agent], to = from + moves[action];
    int32_t *cargo = world->cargo + agent;
    int enters = 0;
    switch (to < world->lowest || to > world->highest ? WALL : world->cells[to]) {
    case EMPTY:
        enters = 1;
        break;
    case RESOURCE:
        enters = *cargo < world->settings[CAPACITY];
        *cargo += enters;
        counts[GATHERED] += enters;
        *world->missing += enters && world->settings[RESPAWNS];
        break;
    case DEPOT:
        counts[DELIVERED] += *cargo;
        counts[BLOCKED] += !*cargo;
        *cargo = 0;
        world->cells[from] = AGENT;
        return;
    case DOOR:
        enters = world->keys[agent] > 0;
        world->keys[agent] -= enters;
        counts[DOORS_OPENED] += enters;
        break;
    case KEY:
        enters = 1;
        world->keys[agent] += 1;
        break;
    default:
        break;
    }
    counts[BLOCKED] += !enters;
    if (enters) {
        world->cells[from] = EMPTY;
        world->cells[to] = *cargo ? LOADED_AGENT : AGENT;
        world->positions[agent] = (int32_t)to;
    }
}

static float events_reward(const World *world, const int32_t *counts)
{
    const float *table = world->reward_table;
    return (table[GATHER_REWARD] * (float)counts[GATHERED] + table[DELIVER_REWARD] * (float)counts[DELIVERED]) +
           table[DOOR_REWARD] * (float)counts[DOORS_OPENED];
}

/* All agents' turns, from the one whose number is step % num_agents on; returns the team's deliveries. */
static int64_t play_turns(World *world, const int64_t *actions, float *rewards)
{
    const int64_t num_agents = world->num_agents;
    int32_t did[MOST_AGENTS][NUM_COUNTS] = {{0}}, team[NUM_COUNTS] = {0};
    int64_t agent = *world->step % num_agents, delivered = 0;
    for (int64_t turn = 0; turn < num_agents; ++turn) {
        act(world, agent, actions[agent], did[agent]);
        agent = agent + 1 == num_agents ? 0 : agent + 1;
    }
    for (agent = 0; agent < num_agents; ++agent) {
        int32_t *total = world->counts + agent * NUM_COUNTS;
        for (int kind = 0; kind < NUM_COUNTS; ++kind) {
            total[kind] += did[agent][kind];
            team[kind] += did[agent][kind];
        }
        delivered += total[DELIVERED];
    }
    const float shared = events_reward(world, team) / (float)num_agents;
    for (agent = 0; agent < num_agents; ++agent) {
        const float own = events_reward(world, did[agent]);
        rewards[agent] = (world->settings[SHARED] ? shared : own) - world->reward_table[STEP_COST];
    }
    return delivered;
}

/* A step of one world, and the beginning of its next episode where this one ended.
 * 0: continues; 1: terminated; 2: truncated; -1: the next world could not be built. */
static int step_world(const Worlds *worlds, int64_t index, const int64_t *actions, Outputs out)
{
    World world = world_at(worlds, index);
    const int64_t *settings = world.settings, num_agents = world.num_agents;
    const int64_t delivered = play_turns(&world, actions, out.rewards);
    *world.step += 1;
    while (*world.missing > 0 && put(&world, (Columns){1, settings[WIDTH] - 2}, RESOURCE) >= 0)
        *world.missing -= 1;
    const int terminated = settings[GOAL] > 0 && delivered >= settings[GOAL];
    const int truncated = !terminated && *world.step >= settings[HORIZON];
    memset(out.terminated, terminated, (size_t)num_agents);
    memset(out.truncated, truncated, (size_t)num_agents);
    memset(out.starts, terminated || truncated, (size_t)num_agents);
    if (truncated)
        observe(&world, out.final_obs);
    if (terminated || truncated) {
        memcpy(out.counts, world.counts, (size_t)num_agents * NUM_COUNTS * sizeof(int32_t));
        worlds->episodes[index] += 1;
        if (begin_episode(worlds, index) < 0)
            return -1;
        world = world_at(worlds, index);
    }
    observe(&world, out.obs);
    return terminated ? 1 : (truncated ? 2 : 0);
}
