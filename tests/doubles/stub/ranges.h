/* Ranges of addresses: what memory.c and allocations.c keep their tables of. Read next: ranges.c. */
#ifndef OOCTRAIN_STUB_RANGES_H
#define OOCTRAIN_STUB_RANGES_H

#include "stub.h"

enum { FRESH_BYTE = 0xFF, PAGE = 4096 };

/* A range of addresses; `handle` is its number where it is a mapping. */
struct range {
    CUdeviceptr base;
    size_t size;
    CUmemGenericAllocationHandle handle;
    int access;
};

/* Ranges that do not overlap, ascending. */
struct table {
    struct range *items;
    size_t count, room;
};

extern struct table reserved, device, host; /* device: mappings and whole allocations */

struct range *covering(const struct table *table, CUdeviceptr address); /* NULL: none does */
struct range *range_at(const struct table *table, CUdeviceptr base);    /* that begins there */
int overlaps(const struct table *table, CUdeviceptr address, size_t size);
int add_range(struct table *table, struct range range);
void drop_range(struct table *table, struct range *range);

void *pages(void *wanted, size_t size, int protection, int flags);
CUdeviceptr addresses(CUdeviceptr hint, size_t size, size_t alignment);
void give_addresses_back(CUdeviceptr base, size_t size);
size_t granules(size_t size); /* rounded up to whole ones */
int whole(size_t size);
int fits(size_t size); /* whether the device has so much left */

#endif
