/* What a C environment knows about a C actor: a function that chooses an action for every row.
 *
 * Python carries it in a capsule of this name; the address in it is that of a FusedActor.
 */
#ifndef METTA_FUSED_ACTOR_H
#define METTA_FUSED_ACTOR_H

#include <stdint.h>

#define FUSED_ACTOR_CAPSULE "metta.fused_actor.2"

typedef struct FusedActor {
    int64_t num_inputs;  /* elements of one row's observation */
    int64_t num_actions; /* actions are 0 .. num_actions - 1, with one number of noise for each */
    /* obs [n, num_inputs] of the struct format `kind`, noise [n, num_actions], mask the same or NULL;
     * writes actions [n] and the parameters [n, num_actions] they were drawn from */
    void (*act)(const struct FusedActor *actor, char kind, const void *obs, const float *noise,
                const uint8_t *mask, int64_t num_rows, int64_t *actions, float *params);
} FusedActor;

#endif
