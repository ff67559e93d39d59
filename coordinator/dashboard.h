// web/dashboard.html as bytes; made by the build.
#ifndef EBB_COORDINATOR_DASHBOARD_H
#define EBB_COORDINATOR_DASHBOARD_H

#include <stddef.h>

extern const unsigned char ebb_dashboard_html[];
extern const size_t ebb_dashboard_html_len;

#endif
