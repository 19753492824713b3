/* The gate of the stub driver: what each call passes first, the context, and what tests may order.
 *
 * In: the name of a call and what it needs. Out: success, or the number that CUDA would answer
 * whatever the arguments are: no cuInit, a fork, an earlier error that lasts, no context in this
 * thread. The one idea: a refusal leaves its reason in words (`stub_why`), since a number says too
 * little; whatever is refused has changed nothing. The rules are those of
 * `testing/fake_driver.py`. Read next: device.c, memory.c.
 */
#define _GNU_SOURCE
#include "streams.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEEPEST = 32, LONGEST_REASON = 512, LONGEST_LIST = 1024 };

static const struct stub_options USUAL = {
    .total_bytes = 1ll << 30, .granularity = 2 << 20, .address_bytes = 1ll << 44,
    .host_bytes = 1ll << 40, .version = 13000, .capability = 90, .maps = 1, .late = 1,
    .fresh = 1, .kept = 4096,
};
struct stub_options options = USUAL;
struct stub_numbers numbers;

static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static struct stub_call *all_calls;
static int initialized, forked;
static long epoch = 1; /* grows with each reset, so that other threads' contexts are forgotten */
static char reason[LONGEST_REASON];
static struct {
    char calls[LONGEST_LIST]; /* "cuMemMap cuMemCreate", or "*" */
    long after;
    CUresult status;
} fault;

/* The one context has one address for ever, as a device's primary context does. */
static char context_mark;
#define THE_CONTEXT ((CUcontext)(void *)&context_mark)

static _Thread_local struct {
    long epoch;
    int depth;
    CUcontext stack[DEEPEST];
} thread;

static int *thread_depth(void)
{
    if (thread.epoch != epoch) {
        thread.epoch = epoch;
        thread.depth = 0;
    }
    return &thread.depth;
}

static CUcontext current(void)
{
    int depth = *thread_depth();
    return depth ? thread.stack[depth - 1] : NULL;
}

static void say(CUresult status, const char *format, va_list arguments)
{
    vsnprintf(reason, sizeof reason, format, arguments);
    if (getenv("OOCTRAIN_STUB_SAYS")) fprintf(stderr, "stub driver: %d: %s\n", status, reason);
}

CUresult refuse(CUresult status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    say(status, format, arguments);
    va_end(arguments);
    return status;
}

CUresult break_context(CUresult status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    say(status, format, arguments);
    va_end(arguments);
    numbers.sticky = status;
    return status;
}

/* cuda.h: "any further CUDA work will return the same error", and its like. */
static int lasts(CUresult status)
{
    return status == CUDA_ERROR_ECC_UNCORRECTABLE || status == CUDA_ERROR_NVLINK_UNCORRECTABLE ||
           status == 226 || status == CUDA_ERROR_ILLEGAL_ADDRESS ||
           status == CUDA_ERROR_LAUNCH_TIMEOUT || status == CUDA_ERROR_ASSERT ||
           (status >= CUDA_ERROR_HARDWARE_STACK_ERROR && status <= CUDA_ERROR_LAUNCH_FAILED) ||
           status == 721 || status == 911;
}

static int listed(const char *list, const char *name)
{
    size_t length = strlen(name);
    if (!strcmp(list, "*")) return 1;
    for (const char *at = strstr(list, name); at; at = strstr(at + 1, name)) {
        int begins = at == list || at[-1] == ' ';
        if (begins && (at[length] == ' ' || !at[length])) return 1;
    }
    return 0;
}

static CUresult ordered_failure(const char *name)
{
    if (!fault.calls[0] || !listed(fault.calls, name) || fault.after-- > 0) return CUDA_SUCCESS;
    fault.calls[0] = 0;
    if (lasts(fault.status)) return break_context(fault.status, "%s: ordered by a test", name);
    return refuse(fault.status, "%s: ordered by a test", name);
}

CUresult stub_enter(struct stub_call *call, enum needs needs)
{
    pthread_mutex_lock(&lock);
    if (!call->count++) {
        call->next = all_calls;
        all_calls = call;
    }
    const char *name = call->name;
    if (needs == NOTHING) return CUDA_SUCCESS;
    if (forked) return refuse(CUDA_ERROR_NOT_INITIALIZED, "%s: this process is a fork", name);
    if (!initialized) return refuse(CUDA_ERROR_NOT_INITIALIZED, "%s before cuInit", name);
    if (needs >= SOUND && numbers.sticky)
        return refuse((CUresult)numbers.sticky, "%s: an earlier error lasts", name);
    if (needs == CONTEXT && !current())
        return refuse(CUDA_ERROR_INVALID_CONTEXT, "%s: this thread has no context", name);
    if (needs == CONTEXT && !numbers.retained)
        return refuse(CUDA_ERROR_CONTEXT_IS_DESTROYED, "%s: the context was released", name);
    CUresult status = needs == CONTEXT ? capture_forbids(name) : CUDA_SUCCESS;
    return status ? status : ordered_failure(name);
}

void stub_leave(int *unused)
{
    (void)unused;
    pthread_mutex_unlock(&lock);
}

/* What tests order and ask. */

#define LOCKED                                                            \
    __attribute__((cleanup(stub_leave))) int stub_held_lock = 0;          \
    (void)stub_held_lock;                                                 \
    pthread_mutex_lock(&lock)

EXPORT void stub_lock(void) { pthread_mutex_lock(&lock); }
EXPORT void stub_unlock(void) { pthread_mutex_unlock(&lock); }

static long long *place_of(const char *name)
{
    static const struct {
        const char *name;
        long long *place;
    } NAMES[] = {
        {"total_bytes", &options.total_bytes},
        {"granularity", &options.granularity},
        {"address_bytes", &options.address_bytes},
        {"host_bytes", &options.host_bytes},
        {"version", &options.version},
        {"capability", &options.capability},
        {"maps", &options.maps},
        {"late", &options.late},
        {"fresh", &options.fresh},
        {"kept", &options.kept},
        {"most_moved", &options.most_moved},
    };
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++)
        if (!strcmp(NAMES[i].name, name)) return NAMES[i].place;
    return NULL;
}

/* Sets an option; 0 if there is none of that name. Sizes are set before memory is obtained. */
EXPORT int stub_set(const char *name, long long value)
{
    LOCKED;
    long long *place = place_of(name);
    if (place) *place = value;
    return place != NULL;
}

/* The call after the next `after` of these calls fails once; a list with spaces, or "*". */
EXPORT void stub_fail(const char *calls, long after, int status)
{
    LOCKED;
    snprintf(fault.calls, sizeof fault.calls, "%s", calls);
    fault.after = after;
    fault.status = (CUresult)status;
}

/* Takes back what `stub_fail` ordered; whether it was still to come. */
EXPORT int stub_clear_fault(void)
{
    LOCKED;
    int waiting = fault.calls[0] != 0;
    fault.calls[0] = 0;
    return waiting;
}

/* Why the last call that was refused was refused. */
EXPORT const char *stub_why(void) { return reason; }

/* How often a function was called. */
EXPORT long stub_calls(const char *name)
{
    LOCKED;
    for (struct stub_call *call = all_calls; call; call = call->next)
        if (!strcmp(call->name, name)) return call->count;
    return 0;
}

static const struct {
    const char *name;
    const long long *place;
} NUMBERS[] = {
    {"contexts_made", &numbers.contexts_made}, {"retained", &numbers.retained},
    {"hidden_waits", &numbers.hidden_waits},   {"pageable_copies", &numbers.pageable_copies},
    {"launches", &numbers.launches},           {"used_bytes", &numbers.used_bytes},
    {"handles", &numbers.handles},             {"references", &numbers.references},
    {"reservations", &numbers.reservations},   {"mappings", &numbers.mappings},
    {"allocations", &numbers.allocations},     {"host", &numbers.host},
    {"host_bytes", &numbers.host_bytes},       {"streams", &numbers.streams},
    {"events", &numbers.events},               {"modules", &numbers.modules},
    {"graphs", &numbers.graphs},               {"execs", &numbers.execs},
    {"sticky", &numbers.sticky},
};

/* One of the numbers that are counted apart from calls; -1: there is none of that name. */
EXPORT long long stub_number(const char *name)
{
    LOCKED;
    for (size_t i = 0; i < sizeof NUMBERS / sizeof *NUMBERS; i++)
        if (!strcmp(NUMBERS[i].name, name)) return *NUMBERS[i].place;
    return -1;
}

/* Everything as when the library was loaded; options too. */
EXPORT void stub_reset(void)
{
    LOCKED;
    forget_streams();
    forget_launches();
    forget_modules();
    forget_memory();
    for (struct stub_call *call = all_calls; call; call = call->next) call->count = 0;
    all_calls = NULL;
    numbers = (struct stub_numbers){0};
    options = USUAL;
    initialized = forked = 0;
    fault.calls[0] = reason[0] = 0;
    epoch++;
}

/* Options of a process that does not know that it runs over a stub: "late=0 total_bytes=123". A name
 * that is no option is the name of a call, and its value a number of an error to fail it with. */
static void read_environment(void)
{
    char text[LONGEST_LIST], *rest = NULL;
    const char *given = getenv("OOCTRAIN_STUB");
    snprintf(text, sizeof text, "%s", given ? given : "");
    for (char *word = strtok_r(text, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        char *value = strchr(word, '=');
        if (!value) continue;
        *value++ = 0;
        if (!stub_set(word, atoll(value))) stub_fail(word, 0, atoi(value));
    }
}

static void in_a_fork(void)
{
    lock = (pthread_mutex_t)PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
    forked = initialized;
}

__attribute__((constructor)) static void loaded(void)
{
    pthread_atfork(NULL, NULL, in_a_fork);
    read_environment();
}

/* What was counted, for whoever started this process: one "name value" a line. */
__attribute__((destructor)) static void unloaded(void)
{
    const char *path = getenv("OOCTRAIN_STUB_REPORT");
    FILE *file = path && !forked ? fopen(path, "w") : NULL;
    if (!file) return;
    for (size_t i = 0; i < sizeof NUMBERS / sizeof *NUMBERS; i++)
        fprintf(file, "%s %lld\n", NUMBERS[i].name, *NUMBERS[i].place);
    for (struct stub_call *call = all_calls; call; call = call->next)
        fprintf(file, "%s %ld\n", call->name, call->count);
    fclose(file);
}

/* The context. */

EXPORT CUresult cuInit(unsigned int flags)
{
    ENTER(NOTHING);
    if (forked) return refuse(CUDA_ERROR_NOT_INITIALIZED, "cuInit: this process is a fork");
    if (flags) return refuse(CUDA_ERROR_INVALID_VALUE, "cuInit: flags %u", flags);
    CUresult status = ordered_failure("cuInit");
    initialized = initialized || status == CUDA_SUCCESS;
    return status;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    ENTER(SOUND);
    if (device) return refuse(CUDA_ERROR_INVALID_DEVICE, "no device %d", device);
    if (!numbers.retained++) numbers.contexts_made++;
    *context = THE_CONTEXT;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    ENTER(INITIALIZED);
    if (device) return refuse(CUDA_ERROR_INVALID_DEVICE, "no device %d", device);
    if (!numbers.retained)
        return refuse(CUDA_ERROR_INVALID_CONTEXT, "the context is released more often than retained");
    if (--numbers.retained) return (CUresult)numbers.sticky;
    CUresult status = finish_everything();
    forget_streams();
    forget_modules();
    forget_allocations();
    return status;
}

EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active)
{
    ENTER(INITIALIZED);
    if (device) return refuse(CUDA_ERROR_INVALID_DEVICE, "no device %d", device);
    *flags = 0;
    *active = numbers.retained > 0;
    return CUDA_SUCCESS;
}

static CUresult known_context(CUcontext context)
{
    if (context && context != THE_CONTEXT)
        return refuse(CUDA_ERROR_INVALID_CONTEXT, "%p is no context", (void *)context);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSetCurrent(CUcontext context)
{
    ENTER(SOUND);
    CUresult status = known_context(context);
    if (status) return status;
    int *depth = thread_depth();
    if (*depth) --*depth;
    if (context) thread.stack[(*depth)++] = context;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetCurrent(CUcontext *context)
{
    ENTER(INITIALIZED);
    *context = current();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context)
{
    ENTER(SOUND);
    CUresult status = known_context(context);
    if (status || !context) return status ? status : CUDA_ERROR_INVALID_CONTEXT;
    if (*thread_depth() == DEEPEST) return refuse(CUDA_ERROR_INVALID_VALUE, "contexts too deep");
    thread.stack[(*thread_depth())++] = context;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
    ENTER(INITIALIZED);
    if (!current()) return refuse(CUDA_ERROR_INVALID_CONTEXT, "no context to pop");
    if (context) *context = current();
    --*thread_depth();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetDevice(CUdevice *device)
{
    ENTER(CONTEXT);
    *device = 0;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSynchronize(void)
{
    ENTER(CONTEXT);
    if (anybody_captures())
        return refuse(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "the host waits while a stream captures");
    return finish_everything();
}
