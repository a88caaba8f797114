/* files.h: a directory of its own for a test program, and files in it.
 *
 *   if (!files_open("data")) return 1;                         // dir: $TMPDIR/cadre-test-data-XXXXXX, or under /tmp
 *   put("a.txt", "words");
 *   T_CHECK(same_files("a.txt", "b.txt"));
 *   files_close();                                             // gone, unless CADRE_KEEP is set
 */
#ifndef CADRE_TEST_FILES_H
#define CADRE_TEST_FILES_H
#include "base/base.h"
#include "test.h"
#include <dirent.h>
#include <unistd.h>

static char dir[512];

static inline bool files_open(const char *name)
{
    const char *tmp = getenv("TMPDIR");
    (void)snprintf(dir, sizeof dir, "%s/cadre-test-%s-XXXXXX", tmp && *tmp ? tmp : P_tmpdir, name);
    return mkdtemp(dir) != NULL;
}

static inline void files_close(void)
{
    if (getenv("CADRE_KEEP")) printf("%s\n", dir);
    else (void)cdr_remove_tree(dir, NULL);
}

/* One of the last 16 paths asked for */
static inline const char *in_dir(const char *name)
{
    static char path[16][1200];
    static int k;
    k = (k + 1) % 16;
    (void)snprintf(path[k], sizeof path[k], "%s/%s", dir, name);
    return path[k];
}

static inline void put_file(const char *path, const void *data, size_t bytes)
{
    FILE *f = fopen(path, "wb");
    T_CHECK(f && fwrite(data, 1, bytes, f) == bytes);
    if (f) (void)fclose(f);
}

static inline void put_text(const char *path, const char *text) { put_file(path, text, strlen(text)); }
static inline void put(const char *name, const char *text) { put_text(in_dir(name), text); }

/* Both are there, with the same bytes. */
static inline bool same_file(const char *a, const char *b)
{
    char *x = NULL, *y = NULL;
    size_t nx = 0, ny = 0;
    bool same = cdr_file_read(a, 1 << 28, &x, &nx, NULL) == CDR_OK && cdr_file_read(b, 1 << 28, &y, &ny, NULL) == CDR_OK && nx == ny && memcmp(x, y, nx) == 0;
    cdr_free(x);
    cdr_free(y);
    return same;
}

static inline bool same_files(const char *a, const char *b) { return same_file(in_dir(a), in_dir(b)); }

static inline int files_in(const char *path)
{
    int n = 0;
    DIR *d = opendir(path);
    for (const struct dirent *e; d && (e = readdir(d));) n += e->d_name[0] != '.';
    if (d) closedir(d);
    return n;
}

/* Files with the same names and bytes; their number, 0: they differ. */
static inline int same_dirs(const char *a, const char *b)
{
    const int n = files_in(a);
    bool same = n == files_in(b);
    DIR *d = opendir(a);
    for (const struct dirent *e; d && (e = readdir(d));) {
        char x[2048], y[2048];
        if (e->d_name[0] == '.') continue;
        (void)snprintf(x, sizeof x, "%s/%s", a, e->d_name);
        (void)snprintf(y, sizeof y, "%s/%s", b, e->d_name);
        if (!same_file(x, y)) fprintf(stderr, "  %s differs\n", e->d_name), same = false;
    }
    if (d) closedir(d);
    return same ? n : 0;
}
#endif
