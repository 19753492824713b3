/* The stub's graphs: work that is captured in place of being queued, and launched as a whole.
 *
 * In: streams that capture, events between them. Out: graphs of copies, fills and launches, each
 * piece behind those that it was captured behind. The one idea: while a stream captures, "all that
 * was queued on it" is a set of nodes, and an event carries such a set to other streams, which so
 * join the capture. A graph that is launched is one piece of work of its stream; with the option
 * `late` its nodes are done newest first as far as their order leaves that open, so that a missing
 * wait shows. Source: cuda.h, stream management and graphs. Read next: streams.c, events.c.
 */
#define _GNU_SOURCE
#include "streams.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_GRAPH = 0x70000000, FIRST_EXEC = 0x78000000, RELAXED = 2 };

struct node {
    struct work work;
    struct nodes after;
};

struct graph {
    int references; /* its handle, its executable forms, queued launches */
    unsigned count, room;
    struct node *nodes;
};

struct capture {
    unsigned long id;
    struct stream *origin;
    struct graph *graph;
    int mode, spoilt;
    pthread_t thread;
    struct capture *next;
};

static struct slots graphs, execs;
static struct capture *captures;
static unsigned long captures_begun;

/* Sets of nodes. */

static int has(const struct nodes *set, unsigned number)
{
    for (unsigned i = 0; i < set->count; i++)
        if (set->items[i] == number) return 1;
    return 0;
}

static void include(struct nodes *set, unsigned number)
{
    if (has(set, number)) return;
    set->items = realloc(set->items, (set->count + 1) * sizeof *set->items);
    set->items[set->count++] = number;
}

static void include_all(struct nodes *set, const struct nodes *more)
{
    for (unsigned i = 0; i < more->count; i++) include(set, more->items[i]);
}

void clear_nodes(struct nodes *set)
{
    free(set->items);
    *set = (struct nodes){0};
}

/* Graphs. */

static struct graph *hold(struct graph *graph)
{
    graph->references++;
    return graph;
}

void let_go(struct graph *graph)
{
    if (--graph->references) return;
    for (unsigned i = 0; i < graph->count; i++) {
        free(graph->nodes[i].work.launch);
        clear_nodes(&graph->nodes[i].after);
    }
    free(graph->nodes);
    free(graph);
}

static int ready(const struct graph *graph, unsigned number, const char *done)
{
    const struct nodes *after = &graph->nodes[number].after;
    for (unsigned i = 0; i < after->count; i++)
        if (!done[after->items[i]]) return 0;
    return !done[number];
}

static void run_in_time(const struct graph *graph)
{
    for (unsigned i = 0; i < graph->count; i++) run_node(&graph->nodes[i].work);
}

void run_graph(const struct graph *graph)
{
    if (!options.late) {
        run_in_time(graph);
        return;
    }
    char *done = calloc(graph->count + 1, 1);
    for (unsigned left = graph->count; left; left--)
        for (unsigned i = graph->count; i-- > 0;)
            if (ready(graph, i, done)) {
                run_node(&graph->nodes[i].work);
                done[i] = 1;
                break;
            }
    free(done);
}

int graph_uses(const struct graph *graph, int (*wanted)(const struct work *, CUdeviceptr, size_t),
               CUdeviceptr address, size_t size)
{
    for (unsigned i = 0; i < graph->count; i++)
        if (wanted(&graph->nodes[i].work, address, size)) return 1;
    return 0;
}

/* Capturing. */

static struct capture *capture_of(unsigned long id)
{
    for (struct capture *one = captures; one; one = one->next)
        if (one->id == id) return one;
    return NULL;
}

CUresult spoil(struct stream *stream, CUresult status, const char *what)
{
    struct capture *capture = capture_of(stream->captures);
    if (capture) capture->spoilt = 1;
    return refuse(status, "%s, while a stream captures", what);
}

/* Calls that CUDA calls unsafe while a stream captures, unless the capture is relaxed. */
CUresult capture_forbids(const char *name)
{
    static const char *const UNSAFE[] = {
        "cuMemAlloc_v2", "cuMemFree_v2", "cuMemHostAlloc", "cuMemFreeHost", "cuEventQuery",
        "cuModuleLoadData", "cuModuleLoadDataEx", "cuLibraryLoadData", "cuModuleUnload",
    };
    for (struct capture *one = captures; one; one = one->next)
        for (size_t i = 0; one->mode != RELAXED && i < sizeof UNSAFE / sizeof *UNSAFE; i++)
            if (!strcmp(name, UNSAFE[i])) {
                one->spoilt = 1;
                return refuse(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "%s while a stream captures",
                              name);
            }
    return CUDA_SUCCESS;
}

int anybody_captures(void)
{
    for (struct capture *one = captures; one; one = one->next) one->spoilt = 1;
    return captures != NULL;
}

void capture_work(struct stream *stream, struct work work)
{
    struct graph *graph = capture_of(stream->captures)->graph;
    if (graph->count == graph->room) {
        graph->room = graph->room ? 2 * graph->room : 64;
        graph->nodes = realloc(graph->nodes, graph->room * sizeof *graph->nodes);
        if (!graph->nodes) abort();
    }
    struct node *node = &graph->nodes[graph->count];
    *node = (struct node){.work = work};
    include_all(&node->after, &stream->after);
    clear_nodes(&stream->after);
    include(&stream->after, graph->count++);
}

void capture_record(struct stream *stream, struct event *event)
{
    clear_nodes(&event->after);
    event->captured = stream->captures;
    include_all(&event->after, &stream->after);
}

/* A wait for an event that was recorded while its stream captured: who waits joins the capture. */
CUresult capture_wait(struct stream *stream, const struct event *event)
{
    if (!event->captured) {
        if (!event->records) return CUDA_SUCCESS;
        return spoil(stream, CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "a wait for an event from before");
    }
    struct capture *capture = capture_of(event->captured);
    if (!capture)
        return spoil(stream, CUDA_ERROR_CAPTURED_EVENT, "a wait for an event of a capture that is over");
    if (stream->captures && stream->captures != event->captured) {
        capture->spoilt = 1;
        return spoil(stream, CUDA_ERROR_STREAM_CAPTURE_MERGE, "a wait for an event of another capture");
    }
    if (stream == &legacy)
        return spoil(capture->origin, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "the default stream waits");
    stream->captures = event->captured;
    include_all(&stream->after, &event->after);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode)
{
    ENTER(CONTEXT);
    struct stream *stream = stream_of(handle);
    if (!stream) return no_stream(handle);
    if ((int)mode < 0 || (int)mode > RELAXED)
        return refuse(CUDA_ERROR_INVALID_VALUE, "capture mode %d", (int)mode);
    if (stream == &legacy)
        return refuse(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "the default stream cannot capture");
    if (stream->blocking)
        return refuse(CUDA_ERROR_NOT_SUPPORTED, "the stub captures non-blocking streams only");
    if (stream->captures) return spoil(stream, CUDA_ERROR_ILLEGAL_STATE, "a second capture begins");
    struct capture *made = calloc(1, sizeof *made);
    *made = (struct capture){.id = ++captures_begun, .origin = stream, .mode = (int)mode,
                             .thread = pthread_self(), .next = captures};
    made->graph = calloc(1, sizeof *made->graph);
    made->graph->references = 1;
    captures = made;
    stream->captures = made->id;
    clear_nodes(&stream->after);
    return CUDA_SUCCESS;
}

/* Whether all that streams of a capture have captured stands before what the first one has. */
static int joined(const struct capture *capture)
{
    const struct graph *graph = capture->graph;
    char *before = calloc(graph->count + 1, 1);
    int all = 1;
    for (unsigned i = 0; i < capture->origin->after.count; i++)
        before[capture->origin->after.items[i]] = 1;
    for (unsigned i = graph->count; i-- > 0;)
        for (unsigned j = 0; before[i] && j < graph->nodes[i].after.count; j++)
            before[graph->nodes[i].after.items[j]] = 1;
    for (unsigned i = 0; i < graph->count; i++) all = all && before[i];
    free(before);
    return all;
}

static void leave(struct capture *capture)
{
    for (struct capture **at = &captures; *at; at = &(*at)->next)
        if (*at == capture) {
            *at = capture->next;
            break;
        }
    forget_capture(capture->id);
    let_go(capture->graph);
    free(capture);
}

EXPORT CUresult cuStreamEndCapture(CUstream handle, CUgraph *made)
{
    ENTER(CONTEXT);
    struct stream *stream = stream_of(handle);
    if (!stream) return no_stream(handle);
    *made = NULL;
    struct capture *capture = capture_of(stream->captures);
    if (!capture) return refuse(CUDA_ERROR_ILLEGAL_STATE, "a capture ends that has not begun");
    if (capture->origin != stream)
        return spoil(stream, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "a capture ends on another stream");
    if (capture->mode != RELAXED && !pthread_equal(capture->thread, pthread_self()))
        return spoil(stream, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, "a capture ends elsewhere");
    CUresult status = CUDA_SUCCESS;
    if (capture->spoilt)
        status = refuse(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "the capture was spoilt");
    else if (!joined(capture))
        status = refuse(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "a stream has not come back");
    if (!status) {
        size_t slot = take_slot(&graphs, hold(capture->graph));
        *made = (CUgraph)(FIRST_GRAPH + STEP * slot);
        numbers.graphs++;
    }
    leave(capture);
    return status;
}

EXPORT CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *status)
{
    ENTER(CONTEXT);
    struct stream *stream = stream_of(handle);
    if (!stream) return no_stream(handle);
    const struct capture *capture = capture_of(stream->captures);
    *status = (CUstreamCaptureStatus)(capture ? 1 + capture->spoilt : 0);
    return CUDA_SUCCESS;
}

/* Handles. */

static CUresult no_graph(const void *handle)
{
    return refuse(CUDA_ERROR_INVALID_VALUE, "%p is no graph", handle);
}

static CUresult give_back(struct slots *slots, const void *handle, uintptr_t first)
{
    struct graph *graph = item_of(slots, handle, first);
    if (!graph) return no_graph(handle);
    give_slot(slots, ((uintptr_t)handle - first) / STEP);
    let_go(graph);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphGetNodes(CUgraph handle, CUgraphNode *nodes, size_t *count)
{
    ENTER(CONTEXT);
    const struct graph *graph = item_of(&graphs, handle, FIRST_GRAPH);
    if (!graph) return no_graph(handle);
    if (nodes) return refuse(CUDA_ERROR_NOT_SUPPORTED, "the stub only counts nodes");
    *count = graph->count;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *made, CUgraph handle,
                                            unsigned long long flags)
{
    ENTER(CONTEXT);
    struct graph *graph = item_of(&graphs, handle, FIRST_GRAPH);
    if (!graph) return no_graph(handle);
    if (flags) return refuse(CUDA_ERROR_NOT_SUPPORTED, "a graph with flags %llu", flags);
    size_t slot = take_slot(&execs, hold(graph));
    *made = (CUgraphExec)(FIRST_EXEC + STEP * slot);
    numbers.execs++;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphLaunch(CUgraphExec handle, CUstream where)
{
    ENTER(CONTEXT);
    struct graph *graph = item_of(&execs, handle, FIRST_EXEC);
    struct stream *stream = stream_of(where);
    if (!graph) return no_graph(handle);
    if (!stream) return no_stream(where);
    if (stream->captures)
        return spoil(stream, CUDA_ERROR_NOT_SUPPORTED, "a graph is launched (the stub has no nested ones)");
    put(stream, (struct work){.kind = GRAPH, .graph = hold(graph)});
    return queued(stream);
}

EXPORT CUresult cuGraphExecDestroy(CUgraphExec handle)
{
    ENTER(CONTEXT);
    CUresult status = give_back(&execs, handle, FIRST_EXEC);
    if (!status) numbers.execs--;
    return status;
}

EXPORT CUresult cuGraphDestroy(CUgraph handle)
{
    ENTER(CONTEXT);
    CUresult status = give_back(&graphs, handle, FIRST_GRAPH);
    if (!status) numbers.graphs--;
    return status;
}

void forget_graphs(void)
{
    while (captures) leave(captures);
    for (size_t i = 0; i < graphs.count; i++)
        if (graphs.items[i]) let_go(graphs.items[i]);
    for (size_t i = 0; i < execs.count; i++)
        if (execs.items[i]) let_go(execs.items[i]);
    graphs.count = graphs.free_count = execs.count = execs.free_count = 0;
    numbers.graphs = numbers.execs = 0;
}
