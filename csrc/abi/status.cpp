#include "status.hpp"

#include <cstdarg>
#include <cstdio>

namespace flashrt {
namespace {

thread_local char text[1024] = "";

}  // namespace

flashrt_status fail(flashrt_status code, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  for (char *at = text; *at != 0; ++at) {
    if (*at == '\n' || *at == '\r') *at = ' ';  // names of others may hold anything; a log has lines
  }
  return code;
}

const char *last_error() { return text; }

}  // namespace flashrt

extern "C" {

uint32_t flashrt_abi_version(void) { return FLASHRT_ABI_VERSION; }

const char *flashrt_last_error(void) {
  const char *found = flashrt::last_error();
  return found[0] != 0 ? found : "no failure in this thread";
}

const char *flashrt_strerror(flashrt_status status) {
  switch (status) {
    case FLASHRT_OK: return "success";
    case FLASHRT_E_ARGUMENT: return "an argument is null, a flag unknown, or a text no name";
    case FLASHRT_E_STRUCT_SIZE: return "struct_size is below the record's first version";
    case FLASHRT_E_INDEX: return "no record of that index or name";
    case FLASHRT_E_BYTES: return "not as many bytes as the input or output has";
    case FLASHRT_E_UNWRITTEN: return "a stage reads an input that was not written";
    case FLASHRT_E_NOT_MADE: return "nothing of it has been made yet";
    case FLASHRT_E_FINGERPRINT: return "state of another plan";
    case FLASHRT_E_CLOSED: return "the handle is closed";
    case FLASHRT_E_VERSION: return "library and Python package are of different versions";
    case FLASHRT_E_INPUT: return "a value that its input cannot take";
    case FLASHRT_E_STALE: return "a stage would act on results of older inputs, or on none";
    case FLASHRT_E_SHAPE: return "no captured shape";
    case FLASHRT_E_DEVICE: return "the device failed";
    case FLASHRT_E_NUMERICS: return "values that are not finite";
    case FLASHRT_E_CAPSULE: return "no such capsule of this session";
    case FLASHRT_E_CAPSULE_FULL: return "no free capsule slot";
    case FLASHRT_E_SESSION: return "the session's name is taken, or it is not this side's to close";
    case FLASHRT_E_SESSION_LIMIT: return "as many sessions as were configured";
    case FLASHRT_E_INTERNAL: return "a defect of the library";
    default: return "unknown status";
  }
}

}  // extern "C"
