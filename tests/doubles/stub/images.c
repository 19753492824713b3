/* Loaded code as the stub reads it: which kernels there are, and how their arguments lie.
 *
 * In: a cubin or PTX text. Out: an `image` with its functions. The one idea: nothing is run here, so
 * that of each kernel only what a launch must obey is read: offsets and sizes of its parameters,
 * registers, shared memory. A cubin says it in its sections .nv.info.NAME (one entry for each
 * parameter), .nv.info and .nv.shared.NAME; PTX in its .entry. What a driver refuses is refused:
 * another GPU's code, PTX that is newer than the driver, what is neither. Sources: PTX ISA; the
 * layout of .nv.info as `cuobjdump --dump-elf` and `readelf` print it. Read next: launches.c.
 */
#define _GNU_SOURCE
#include "stub.h"

#include <ctype.h>
#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    EM_CUDA_CODE = 190,
    ENTRY_FLAG = 0x10,      /* of a symbol: a kernel */
    FORMAT_SIZED = 4,       /* an entry of .nv.info whose payload has a length */
    PARAMETER_INFO = 0x17,  /* index u32, ordinal u16, offset u16, flags u32 with the size */
    PARAMETER_INFO_2 = 0x45,
    PARAMETER_BYTES = 0x19, /* all of them, in the entry itself */
    MOST_THREADS_INFO = 0x05, /* three u32 */
    REGISTER_INFO = 0x2F, FRAME_INFO = 0x11, /* of all kernels together: symbol u32, number u32 */
    RESERVED_SHARED = 1024, /* the system's own part of a block's, in code from 9.0 on */
    LONGEST_NAME = 4096,
};

static int device_arch(void) { return (int)options.capability; }

/* Newest PTX that a driver takes: 13.x takes 9.x, 12.x about 8.x. */
static int newest_ptx(void)
{
    static const int OF_12[] = {80, 81, 82, 83, 84, 85, 85, 86, 87, 88};
    int major = (int)options.version / 1000, minor = (int)options.version % 1000 / 10;
    if (major == 12) return OF_12[minor < 9 ? minor : 9];
    return (major - 4) * 10 + minor;
}

static int runs_here(int arch) { return arch / 10 == device_arch() / 10 && arch <= device_arch(); }

static struct function *add_function(struct image *image, const char *name, size_t length)
{
    size_t size = (image->function_count + 1) * sizeof *image->functions;
    image->functions = realloc(image->functions, size);
    struct function *made = &image->functions[image->function_count++];
    *made = (struct function){.name = strndup(name, length), .most_threads = MOST_THREADS};
    made->dynamic_bytes = STATIC_SHARED;
    return made;
}

static void add_parameter(struct function *function, unsigned offset, unsigned size)
{
    unsigned count = function->parameter_count++;
    function->parameters = realloc(function->parameters, (count + 1) * sizeof(struct parameter));
    function->parameters[count] = (struct parameter){offset, size};
    if (offset + size > function->parameter_bytes) function->parameter_bytes = offset + size;
}

static void limit_threads(struct function *function)
{
    if (!function->registers) return;
    unsigned of_a_warp = (function->registers * 32 + 255) / 256 * 256;
    unsigned most = REGISTERS / of_a_warp * 32;
    if (most < function->most_threads) function->most_threads = most;
}

/* Cubins. */

struct elf {
    const unsigned char *bytes;
    size_t size;
    const Elf64_Ehdr *header;
    const Elf64_Shdr *sections;
    const char *names;
};

static int open_elf(const unsigned char *bytes, struct elf *elf)
{
    const Elf64_Ehdr *header = (const Elf64_Ehdr *)bytes;
    if (header->e_ident[EI_CLASS] != ELFCLASS64 || header->e_machine != EM_CUDA_CODE) return 0;
    elf->bytes = bytes;
    elf->header = header;
    elf->sections = (const Elf64_Shdr *)(bytes + header->e_shoff);
    elf->size = header->e_shoff + (size_t)header->e_shnum * sizeof(Elf64_Shdr);
    for (unsigned i = 0; i < header->e_shnum; i++) {
        const Elf64_Shdr *section = &elf->sections[i];
        size_t end = section->sh_offset + (section->sh_type == SHT_NOBITS ? 0 : section->sh_size);
        if (end > elf->size) elf->size = end;
    }
    size_t programs = header->e_phoff + (size_t)header->e_phnum * sizeof(Elf64_Phdr);
    if (programs > elf->size) elf->size = programs;
    elf->names = (const char *)bytes + elf->sections[header->e_shstrndx].sh_offset;
    return 1;
}

static const Elf64_Shdr *section_of(const struct elf *elf, const char *prefix, const char *name)
{
    char wanted[LONGEST_NAME];
    snprintf(wanted, sizeof wanted, "%s%s", prefix, name);
    for (unsigned i = 0; i < elf->header->e_shnum; i++)
        if (!strcmp(elf->names + elf->sections[i].sh_name, wanted)) return &elf->sections[i];
    return NULL;
}

static unsigned word_at(const unsigned char *at, size_t size)
{
    unsigned value = 0;
    memcpy(&value, at, size);
    return value;
}

/* One entry after the other: format, kind, then a length and a payload, or two bytes of value. Those
 * of all kernels together name a kernel by the number of its symbol. */
static void read_entries(const struct elf *elf, const Elf64_Shdr *section, size_t symbol,
                         struct function *function)
{
    const unsigned char *at = elf->bytes + section->sh_offset, *end = at + section->sh_size;
    while (at + 4 <= end) {
        unsigned format = at[0], kind = at[1], value = word_at(at + 2, 2);
        const unsigned char *payload = at + 4;
        at = payload + (format == FORMAT_SIZED ? value : 0);
        if (kind == PARAMETER_BYTES && value > function->parameter_bytes)
            function->parameter_bytes = value;
        if (format != FORMAT_SIZED || value < 8) continue;
        unsigned first = word_at(payload, 4), second = word_at(payload + 4, 4);
        if (kind == PARAMETER_INFO || kind == PARAMETER_INFO_2)
            add_parameter(function, second >> 16, word_at(payload + 8, 4) >> 18);
        else if (kind == MOST_THREADS_INFO)
            function->most_threads = first * second * word_at(payload + 8, 4);
        else if (kind == REGISTER_INFO && first == symbol)
            function->registers = second;
        else if (kind == FRAME_INFO && first == symbol)
            function->local_bytes = second;
    }
}

static int by_offset(const void *one, const void *other)
{
    return (int)((const struct parameter *)one)->offset - (int)((const struct parameter *)other)->offset;
}

static void read_kernel(const struct elf *elf, size_t symbol, const char *name, struct image *image)
{
    const Elf64_Shdr *common = section_of(elf, ".nv.info", "");
    const Elf64_Shdr *info = section_of(elf, ".nv.info.", name);
    const Elf64_Shdr *shared = section_of(elf, ".nv.shared.", name);
    struct function *function = add_function(image, name, strlen(name));
    unsigned reserved = image->arch >= 90 ? RESERVED_SHARED : 0;
    if (shared && shared->sh_size > reserved)
        function->shared_bytes = (unsigned)shared->sh_size - reserved;
    if (common) read_entries(elf, common, symbol, function);
    if (info) read_entries(elf, info, symbol, function);
    qsort(function->parameters, function->parameter_count, sizeof(struct parameter), by_offset);
    limit_threads(function);
}

/* The number in e_flags: its place depends on the version of the format. */
static int arch_of(const Elf64_Ehdr *header)
{
    int wide = header->e_ident[EI_ABIVERSION] >= 8;
    return (int)(wide ? header->e_flags >> 8 & 0xFF : header->e_flags & 0xFF);
}

static CUresult read_cubin(const unsigned char *bytes, struct image *image)
{
    struct elf elf;
    if (!open_elf(bytes, &elf)) return refuse(CUDA_ERROR_INVALID_IMAGE, "an ELF file of no GPU");
    image->arch = arch_of(elf.header);
    if (!runs_here(image->arch))
        return refuse(CUDA_ERROR_NO_BINARY_FOR_GPU, "code for sm_%d, and the device is sm_%d",
                      image->arch, device_arch());
    image->size = elf.size;
    image->bytes = memcpy(malloc(elf.size), bytes, elf.size);
    open_elf(image->bytes, &elf);
    const Elf64_Shdr *table = section_of(&elf, ".symtab", "");
    if (!table) return refuse(CUDA_ERROR_INVALID_IMAGE, "a cubin without symbols");
    const Elf64_Sym *symbols = (const Elf64_Sym *)(elf.bytes + table->sh_offset);
    const char *names = (const char *)elf.bytes + elf.sections[table->sh_link].sh_offset;
    for (size_t i = 0; i < table->sh_size / sizeof *symbols; i++)
        if (ELF64_ST_TYPE(symbols[i].st_info) == STT_FUNC && symbols[i].st_other & ENTRY_FLAG)
            read_kernel(&elf, i, names + symbols[i].st_name, image);
    return CUDA_SUCCESS;
}

/* PTX. */

static const char *after(const char *text, const char *word)
{
    const char *found = strstr(text, word);
    return found ? found + strlen(word) : NULL;
}

static unsigned size_of_type(const char *type)
{
    const char *digits = type + strcspn(type, "0123456789");
    return *digits ? (unsigned)atoi(digits) / 8 : 0;
}

/* `.param .u64 name`, `.param .u64 .ptr .align 8 name`, `.param .align 8 .b8 name[24]`. */
static void read_parameter(struct function *function, const char *text, size_t length, unsigned *end)
{
    char copy[LONGEST_NAME], *rest = NULL;
    unsigned size = 0, alignment = 0, count = 1;
    snprintf(copy, sizeof copy, "%.*s", (int)length, text);
    for (char *word = strtok_r(copy, " \t\n\r", &rest); word; word = strtok_r(NULL, " \t\n\r", &rest)) {
        char *bracket = strchr(word, '[');
        if (!strcmp(word, ".align")) {
            char *number = strtok_r(NULL, " \t\n\r", &rest);
            if (!size && number) alignment = (unsigned)atoi(number); /* later: of what it points to */
        } else if (word[0] == '.' && isdigit((unsigned char)word[2])) {
            size = size_of_type(word);
        } else if (bracket) {
            count = (unsigned)atoi(bracket + 1);
        }
    }
    if (!alignment) alignment = size ? size : 1;
    unsigned offset = (*end + alignment - 1) / alignment * alignment;
    add_parameter(function, offset, size * count);
    *end = offset + size * count;
}

static void read_entry(struct image *image, const char *at)
{
    at += strspn(at, " \t\n\r");
    size_t length = strcspn(at, " \t\n\r(");
    struct function *function = add_function(image, at, length);
    const char *open = strchr(at, '('), *body = strchr(at, '{'), *most = after(at, ".maxntid");
    unsigned x = 1, y = 1, z = 1;
    if (body && most && most < body && sscanf(most, " %u , %u , %u", &x, &y, &z))
        function->most_threads = x * y * z;
    if (!open || !body || open > body) return;
    const char *close = strchr(open, ')'), *parameter = open;
    unsigned end = 0;
    while ((parameter = after(parameter, ".param")) && parameter < close) {
        size_t size = strcspn(parameter, ",)");
        read_parameter(function, parameter, size, &end);
    }
}

static CUresult read_ptx(const char *text, struct image *image)
{
    const char *version = after(text, ".version"), *target = after(text, ".target sm_");
    if (!version || !target) return refuse(CUDA_ERROR_INVALID_IMAGE, "neither a cubin nor PTX");
    int major = 0, minor = 0;
    if (sscanf(version, " %d.%d", &major, &minor) != 2)
        return refuse(CUDA_ERROR_INVALID_PTX, "PTX without a version");
    image->ptx_version = 10 * major + minor;
    image->arch = atoi(target);
    int specific = target[strspn(target, "0123456789")] == 'a'; /* sm_90a: no later one */
    if (image->ptx_version > newest_ptx())
        return refuse(CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
                      "PTX %d.%d, and a driver of CUDA %lld.%lld takes %d.%d", major, minor,
                      options.version / 1000, options.version % 1000 / 10, newest_ptx() / 10,
                      newest_ptx() % 10);
    if (image->arch > device_arch() || (specific && image->arch != device_arch()))
        return refuse(CUDA_ERROR_NO_BINARY_FOR_GPU, "PTX for sm_%d, and the device is sm_%d",
                      image->arch, device_arch());
    image->size = strlen(text) + 1;
    image->bytes = (unsigned char *)strdup(text);
    text = (const char *)image->bytes;
    while ((text = after(text, ".entry"))) read_entry(image, text);
    return CUDA_SUCCESS;
}

CUresult read_image(const void *data, struct image **made)
{
    if (!data) return refuse(CUDA_ERROR_INVALID_VALUE, "no image");
    struct image *image = calloc(1, sizeof *image);
    int is_elf = !memcmp(data, ELFMAG, SELFMAG);
    CUresult status = is_elf ? read_cubin(data, image) : read_ptx(data, image);
    if (status) {
        free_image(image);
        return status;
    }
    for (unsigned i = 0; i < image->function_count; i++) image->functions[i].image = image;
    *made = image;
    return CUDA_SUCCESS;
}

void free_image(struct image *image)
{
    for (unsigned i = 0; i < image->function_count; i++) {
        free(image->functions[i].name);
        free(image->functions[i].parameters);
    }
    free(image->functions);
    free(image->bytes);
    free(image);
}
