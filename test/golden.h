/* golden.h: reads the vectors of tools/golden_ops.py: "name n_dim n_0 n_1 ..." on a line, then the elements.
 *
 *   golden gd = golden_open("rmsnorm");                    // test/golden/rmsnorm.txt, from the root of the repository
 *   const golden_tensor *x = golden_get(&gd, "x");         // ends the program when it is not there
 *   golden_close(&gd);
 */
#ifndef CADRE_GOLDEN_H
#define CADRE_GOLDEN_H
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { char name[48]; int n_dim; int64_t n[4], elems; double *x; } golden_tensor;
typedef struct { char path[128]; golden_tensor t[64]; int n; } golden;

static inline golden golden_open(const char *name)
{
    golden gd = { .n = 0 };
    snprintf(gd.path, sizeof gd.path, "test/golden/%s.txt", name);
    FILE *f = fopen(gd.path, "r");
    if (!f) {
        fprintf(stderr, "%s cannot be opened; run from the root of the repository\n", gd.path);
        exit(1);
    }
    while (gd.n < 64 && fscanf(f, "%47s %d", gd.t[gd.n].name, &gd.t[gd.n].n_dim) == 2) {
        golden_tensor *t = &gd.t[gd.n++];
        t->elems = 1;
        for (int d = 0; d < t->n_dim && d < 4; d++) {
            long long m = 0;
            if (fscanf(f, "%lld", &m) != 1) break;
            t->n[d] = m;
            t->elems *= m;
        }
        t->x = malloc((size_t)t->elems * sizeof(double));
        for (int64_t i = 0; i < t->elems; i++)
            if (fscanf(f, "%lf", &t->x[i]) != 1) {
                fprintf(stderr, "%s: %s is cut off at element %lld\n", gd.path, t->name, (long long)i);
                exit(1);
            }
    }
    fclose(f);
    return gd;
}
static inline const golden_tensor *golden_get(const golden *gd, const char *name)
{
    for (int i = 0; i < gd->n; i++) if (strcmp(gd->t[i].name, name) == 0) return &gd->t[i];
    fprintf(stderr, "%s has no tensor %s\n", gd->path, name);
    exit(1);
}
static inline void golden_close(golden *gd)
{
    for (int i = 0; i < gd->n; i++) free(gd->t[i].x);
    gd->n = 0;
}
#endif
