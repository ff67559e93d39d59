#include "core/status.h"

const char *ebb_status_str(int status)
{
    switch (status) {
#define X(name, number, text) \
    case number:              \
        return text;
        EBB_STATUS_LIST(X)
#undef X
    default:
        return "unknown status";
    }
}

const char *ebb_status_name(int status)
{
    switch (status) {
#define X(name, number, text) \
    case number:              \
        return #name;
        EBB_STATUS_LIST(X)
#undef X
    default:
        return "UNKNOWN";
    }
}
