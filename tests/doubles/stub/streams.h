/* Queued work as streams.c, events.c and copies.c know it. Read next: streams.c. */
#ifndef OOCTRAIN_STUB_STREAMS_H
#define OOCTRAIN_STUB_STREAMS_H

#include "stub.h"

enum { STEP = 16 }; /* between handles */

struct graph;

struct nodes { /* of a graph, by number */
    unsigned *items, count;
};

struct event {
    int used, timing, queued; /* queued: pieces of work that name it */
    unsigned long captured;   /* the capture in which it was recorded last, or 0 */
    struct nodes after;       /* what it stands behind there */
    unsigned long records, reached;
    long long at_ns;
    struct stream *stream; /* of the latest record */
    size_t slot;
};

enum kind { COPY, FILL, RECORD, WAIT, LAUNCH, GRAPH };

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
    struct graph *graph;
};

struct stream {
    int used, blocking;
    size_t queued, slot;
    struct work *first, *last;
    unsigned long captures; /* the number of the capture that it takes part in, or 0 */
    struct nodes after;     /* what it has captured last */
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

/* graphs.c */
void run_node(const struct work *work);
void run_graph(const struct graph *graph);
int graph_uses(const struct graph *graph, int (*wanted)(const struct work *, CUdeviceptr, size_t),
               CUdeviceptr address, size_t size);
void let_go(struct graph *graph);
void clear_nodes(struct nodes *set);
void capture_work(struct stream *stream, struct work work);
void capture_record(struct stream *stream, struct event *event);
CUresult capture_wait(struct stream *stream, const struct event *event);
CUresult spoil(struct stream *stream, CUresult status, const char *what);
void forget_capture(unsigned long id); /* no stream takes part in it any more */
int anybody_captures(void);            /* which is then spoilt */
void forget_graphs(void);

void forget_event(struct event *event); /* if nobody holds it any more */
void forget_events(void);

#endif
