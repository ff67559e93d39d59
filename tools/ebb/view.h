// What a person sees of a job: the live view for a terminal, plain lines for a pipe. Pure: text out of a status.
#ifndef EBB_TOOLS_EBB_VIEW_H
#define EBB_TOOLS_EBB_VIEW_H

#include <stdbool.h>
#include <stdio.h>

#include "core/wire.h"

typedef struct ebb_view_options {
    int width;  // no line is wider
    int height; // fewer lines than this, so that going back up by them works; 0: no bound
    bool color;
} ebb_view_options;

// The whole view; returns the number of lines written. notes: last messages of the supervisor, may be NULL; n_notes of them.
int ebb_view_render(FILE *out, const Ebb__StatusReply *s, const ebb_view_options *o, const char *const *notes, size_t n_notes);
// One line about progress, without newline.
void ebb_view_line(FILE *out, const Ebb__StatusReply *s);
// "1h02m", "3m05s", "12s"
void ebb_view_duration(double seconds, char *out, size_t size);

#endif
