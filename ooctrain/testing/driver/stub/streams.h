/* Queued work as streams.c, events.c and copies.c know it. Read next: streams.c. */
#ifndef OOCTRAIN_STUB_STREAMS_H
#define OOCTRAIN_STUB_STREAMS_H

#include "stub.h"

enum { STEP = 16 }; /* between handles */

struct event {
    int used, timing, queued; /* queued: pieces of work that name it */
    unsigned long records, reached;
    long long at_ns;
    struct stream *stream; /* of the latest record */
    size_t slot;
};

enum kind { COPY, FILL, RECORD, WAIT, LAUNCH };

struct work {
    struct work *next;
    enum kind kind;
    uintptr_t to, from; /* of a copy; `to` of a fill */
    size_t size;
    int to_device, from_device;
    unsigned char byte;
    struct event *event;
    unsigned long number;  /* of the record that is made or waited for */
    struct stream *source; /* where that record was queued */
    struct launch *launch;
};

struct stream {
    int used, blocking;
    size_t queued, slot;
    struct work *first, *last;
};

struct slots { /* handles: those given back are the next to be given out, as CUDA does */
    void **items;
    size_t count, room, free_count, *free;
};

extern struct stream legacy; /* the default stream */

size_t take_slot(struct slots *slots, void *item);
void give_slot(struct slots *slots, size_t slot);
void *item_of(const struct slots *slots, const void *handle, uintptr_t first); /* NULL: none */

struct stream *stream_of(CUstream handle); /* NULL: no such handle */
CUresult no_stream(CUstream handle);
struct work *put(struct stream *stream, struct work given);
CUresult queued(struct stream *stream);
void run_one(struct stream *stream);
void run_until(struct event *event, unsigned long number, struct stream *source);
CUresult finish(struct stream *stream);
void finish_blocking(void);

void forget_event(struct event *event); /* if nobody holds it any more */
void forget_events(void);

#endif
