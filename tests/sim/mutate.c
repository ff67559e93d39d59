#include "tests/sim/mutate.h"

#include <string.h>

mutation mutate_now = MUTATE_NOTHING;

static const mutation_row s_rows[MUTATIONS] = {[MUTATE_NOTHING] = {"nothing", "the product as it is", 0},
#define X(name, word, within, what) [MUTATE_##name] = {word, what, within},
                                               MUTATION_LIST(X)
#undef X
};

const mutation_row *mutation_get(mutation m)
{
    return &s_rows[m];
}

mutation mutation_find(const char *word)
{
    for (int m = MUTATE_NOTHING + 1; m < MUTATIONS; m++) {
        if (strcmp(s_rows[m].word, word) == 0) {
            return (mutation)m;
        }
    }
    return MUTATE_NOTHING;
}
