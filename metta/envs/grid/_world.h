/* Grid worlds in memory, and how one is built from its seed.
 *
 * Everything is integers. numpy_generation.py does the same, and the two agree to the bit.
 *
 * A world lies in an array of cells that is padded with walls on every side, so that no view and no
 * neighbour ever needs a separate check. Agents are marked in it; they always stand on empty ground.
 */
#include <stdint.h>
#include <string.h>

enum { EMPTY, WALL, RESOURCE, DEPOT, DOOR, KEY, AGENT, LOADED_AGENT };
enum { WIDTH, HEIGHT, HORIZON, WALL_THRESHOLD, RESOURCES, DEPOTS, ROOMS, KEYS, CAPACITY, SHARED,
       RESPAWNS, GOAL, NUM_SETTINGS };
enum { GATHER_REWARD, DELIVER_REWARD, DOOR_REWARD, STEP_COST, NUM_REWARDS };
enum { GATHERED, DELIVERED, DOORS_OPENED, BLOCKED, NUM_COUNTS };
enum { SELF_NUMBERS = 4, HIGHEST = 7, NUM_ACTIONS = 5 };
enum { LARGEST_SIDE = 64, MOST_AGENTS = 64, WIDEST_VIEW = 5, MOST_THINGS = 4096 };
enum { BUILD_ATTEMPTS = 32, WALLED_ATTEMPTS = 16, PLACE_TRIES = 16 };

#define GAMMA UINT64_C(0x9E3779B97F4A7C15)

/* All worlds: memory of the caller. */
typedef struct {
    int64_t num_worlds, num_agents, radius, rows, stride, num_tasks;
    const int64_t *settings;
    const float *reward_table;
    const int64_t *seeds;
    int64_t *episodes, *draws;
    int32_t *tasks;
    const int32_t *next_tasks;
    int32_t *steps, *missing;
    uint8_t *cells, *compass;
    int32_t *positions, *cargo, *keys, *counts;
} Worlds;

/* One of them. */
typedef struct {
    const int64_t *settings;
    const float *reward_table;
    int64_t num_agents, radius, rows, stride, lowest, highest;
    uint64_t stream;
    int64_t *draws;
    int32_t *step, *missing;
    uint8_t *cells, *compass;
    int32_t *positions, *cargo, *keys, *counts;
} World;

/* The columns of cells, and all rows, that a thing may be put into; of the world without padding. */
typedef struct {
    int64_t left, right;
} Columns;

/* splitmix64 (Steele, Lea and Flood 2014) */
static uint64_t mixed(uint64_t value)
{
    value = (value ^ (value >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    value = (value ^ (value >> 27)) * UINT64_C(0x94D049BB133111EB);
    return value ^ (value >> 31);
}

static uint64_t episode_stream(int64_t seed, int64_t episode)
{
    return mixed(mixed((uint64_t)seed + GAMMA) + (uint64_t)episode * GAMMA);
}

/* The upper half of the next random number of this episode. */
static uint64_t draw(World *world)
{
    *world->draws += 1;
    return mixed(world->stream + (uint64_t)*world->draws * GAMMA) >> 32;
}

static int64_t draw_below(World *world, int64_t bound)
{
    return (int64_t)((draw(world) * (uint64_t)bound) >> 32);
}

static World world_at(const Worlds *worlds, int64_t index)
{
    const int64_t size = worlds->rows * worlds->stride, first = index * worlds->num_agents;
    const int64_t margin = worlds->radius * worlds->stride + worlds->radius;
    return (World){
        .settings = worlds->settings + worlds->tasks[index] * NUM_SETTINGS,
        .reward_table = worlds->reward_table + worlds->tasks[index] * NUM_REWARDS,
        .num_agents = worlds->num_agents,
        .radius = worlds->radius,
        .rows = worlds->rows,
        .stride = worlds->stride,
        .lowest = margin,
        .highest = size - 1 - margin,
        .stream = episode_stream(worlds->seeds[index], worlds->episodes[index]),
        .draws = worlds->draws + index,
        .step = worlds->steps + index,
        .missing = worlds->missing + index,
        .cells = worlds->cells + index * size,
        .compass = worlds->compass + index * size,
        .positions = worlds->positions + first,
        .cargo = worlds->cargo + first,
        .keys = worlds->keys + first,
        .counts = worlds->counts + first * NUM_COUNTS,
    };
}

static int64_t place_of(const World *world, int64_t row, int64_t column)
{
    return (row + world->radius) * world->stride + column + world->radius;
}

/* Ground that an agent can stand on, now or later; resources and depots may be in the way. */
static int is_open(uint8_t code)
{
    return code != WALL && code != RESOURCE && code != DEPOT;
}

/* Whether something may stand on empty ground for good: what was connected stays connected, doors stay
 * free on both sides, and every resource and depot keeps open ground beside it. The check is local: the
 * open ones of the four neighbours are connected through the eight. */
static int may_fill(const World *world, int64_t at)
{
    const uint8_t *cell = world->cells + at;
    const int64_t down = world->stride;
    const int64_t ring[9] = {-down, 1 - down, 1, down + 1, down, down - 1, -1, -down - 1, -down};
    int num_parts = 0, num_open = 0;
    for (int side = 0; side < 8; side += 2) {
        const int next_two = is_open(cell[ring[side + 1]]) && is_open(cell[ring[side + 2]]);
        num_parts += is_open(cell[ring[side]]) && !next_two;
        num_open += is_open(cell[ring[side]]) + is_open(cell[ring[side + 1]]);
    }
    if (num_parts != 1 && num_open != 8)
        return 0;
    for (int side = 0; side < 8; side += 2) {
        const uint8_t *beside = cell + ring[side];
        if (*beside == DOOR)
            return 0;
        if (*beside != RESOURCE && *beside != DEPOT)
            continue;
        if (is_open(beside[-down]) + is_open(beside[1]) + is_open(beside[down]) + is_open(beside[-1]) < 2)
            return 0;
    }
    return 1;
}

static int can_hold(const World *world, int64_t at, uint8_t code)
{
    if (world->cells[at] != EMPTY)
        return 0;
    return (code != RESOURCE && code != DEPOT) || may_fill(world, at);
}

/* Puts a thing on a random cell; its place, or -1 if there is none. */
static int64_t put(World *world, Columns columns, uint8_t code)
{
    const int64_t width = columns.right - columns.left + 1;
    const int64_t num_cells = width * (world->settings[HEIGHT] - 2);
    int64_t start = 0;
    for (int64_t attempt = 0; attempt < PLACE_TRIES + num_cells; ++attempt) {
        if (attempt <= PLACE_TRIES)
            start = draw_below(world, num_cells);
        const int64_t skipped = attempt <= PLACE_TRIES ? 0 : attempt - PLACE_TRIES;
        const int64_t cell = (start + skipped) % num_cells;
        const int64_t at = place_of(world, 1 + cell / width, columns.left + cell % width);
        if (can_hold(world, at, code)) {
            world->cells[at] = code;
            return at;
        }
    }
    return -1;
}

static Columns room_columns(const World *world, int64_t room)
{
    const int64_t num_rooms = world->settings[ROOMS];
    const int64_t usable = world->settings[WIDTH] - 1 - num_rooms;
    const int64_t base = usable / num_rooms, wider = usable % num_rooms;
    const int64_t left = 1 + room * (base + 1) + (room < wider ? room : wider);
    return (Columns){left, left + base - (room < wider ? 0 : 1)};
}

/* Walls around, rooms in a row, a door between two of them, and inner walls that cut nothing off. */
static void build_walls(World *world, uint64_t threshold)
{
    const int64_t height = world->settings[HEIGHT], num_rooms = world->settings[ROOMS];
    memset(world->cells, WALL, (size_t)(world->rows * world->stride));
    for (int64_t room = 0; room < num_rooms; ++room) {
        const Columns columns = room_columns(world, room);
        for (int64_t row = 1; row < height - 1; ++row)
            memset(world->cells + place_of(world, row, columns.left), EMPTY,
                   (size_t)(columns.right - columns.left + 1));
        if (room + 1 < num_rooms)
            world->cells[place_of(world, 1 + draw_below(world, height - 2), columns.right + 1)] = DOOR;
    }
    for (int64_t room = 0; room < num_rooms; ++room) {
        const Columns columns = room_columns(world, room);
        const int64_t num_cells = (columns.right - columns.left + 1) * (height - 2);
        int64_t allowed = (int64_t)(((uint64_t)num_cells * threshold) >> 32);
        for (int64_t row = 1; row < height - 1; ++row) {
            for (int64_t column = columns.left; column <= columns.right; ++column) {
                const int64_t at = place_of(world, row, column);
                if (draw(world) < threshold && allowed > 0 && may_fill(world, at)) {
                    world->cells[at] = WALL;
                    --allowed;
                }
            }
        }
    }
}

/* Depots and resources go round the rooms; the key of a door lies before it. 0: something found no place;
 * -1: an agent did not. */
static int place_things(World *world)
{
    const int64_t *settings = world->settings;
    const int64_t num_rooms = settings[ROOMS];
    int complete = 1, all_stand = 1;
    for (int64_t i = 0; i < settings[DEPOTS]; ++i)
        complete &= put(world, room_columns(world, i % num_rooms), DEPOT) >= 0;
    for (int64_t i = 0; i < settings[RESOURCES]; ++i)
        complete &= put(world, room_columns(world, num_rooms - 1 - i % num_rooms), RESOURCE) >= 0;
    for (int64_t i = 0; i < settings[KEYS]; ++i) {
        const int64_t room = num_rooms > 1 ? draw_below(world, 1 + i % (num_rooms - 1)) : 0;
        complete &= put(world, room_columns(world, room), KEY) >= 0;
    }
    for (int64_t agent = 0; agent < world->num_agents; ++agent) {
        const int64_t at = put(world, room_columns(world, 0), AGENT);
        world->positions[agent] = (int32_t)at;
        all_stand &= at >= 0;
    }
    return all_stand ? complete : -1;
}

/* Octant of the direction to the nearest depot, of every cell: 0 is north, 1 north-east, and so on. */
static uint8_t octant(int64_t down, int64_t right)
{
    const int64_t vertical = down < 0 ? -down : down, horizontal = right < 0 ? -right : right;
    if (2 * horizontal < vertical)
        return down < 0 ? 0 : 4;
    if (2 * vertical < horizontal)
        return right < 0 ? 6 : 2;
    if (right > 0)
        return down < 0 ? 1 : 3;
    return down < 0 ? 7 : (right < 0 ? 5 : 0);
}

static void map_compass(World *world)
{
    int16_t depots[LARGEST_SIDE * LARGEST_SIDE][2];
    int64_t num_depots = 0;
    const int64_t height = world->settings[HEIGHT], width = world->settings[WIDTH];
    memset(world->compass, 0, (size_t)(world->rows * world->stride));
    for (int64_t row = 0; row < height; ++row)
        for (int64_t column = 0; column < width; ++column)
            if (world->cells[place_of(world, row, column)] == DEPOT) {
                depots[num_depots][0] = (int16_t)row;
                depots[num_depots++][1] = (int16_t)column;
            }
    for (int64_t row = 0; row < height && num_depots; ++row) {
        for (int64_t column = 0; column < width; ++column) {
            int64_t nearest = INT64_MAX, nearest_down = 0, nearest_right = 0;
            for (int64_t i = 0; i < num_depots; ++i) {
                const int64_t down = depots[i][0] - row, right = depots[i][1] - column;
                const int64_t vertical = down < 0 ? -down : down;
                const int64_t horizontal = right < 0 ? -right : right;
                const int64_t distance = vertical > horizontal ? vertical : horizontal;
                if (distance < nearest) {
                    nearest = distance;
                    nearest_down = down;
                    nearest_right = right;
                }
            }
            world->compass[place_of(world, row, column)] = octant(nearest_down, nearest_right);
        }
    }
}

/* Begins the episode whose number is in `episodes`, with the task that is next; -1 on failure. */
static int begin_episode(const Worlds *worlds, int64_t index)
{
    worlds->tasks[index] = worlds->next_tasks[index];
    worlds->draws[index] = 0;
    worlds->steps[index] = 0;
    worlds->missing[index] = 0;
    World world = world_at(worlds, index);
    const size_t size = (size_t)world.num_agents * sizeof(int32_t);
    memset(world.cargo, 0, size);
    memset(world.keys, 0, size);
    memset(world.counts, 0, size * NUM_COUNTS);
    int placed = 0;
    for (int attempt = 0; attempt < BUILD_ATTEMPTS && placed < 1; ++attempt) {
        build_walls(&world, attempt < WALLED_ATTEMPTS ? (uint64_t)world.settings[WALL_THRESHOLD] : 0);
        placed = place_things(&world);
    }
    map_compass(&world);
    return placed < 0 ? -1 : 0;
}
