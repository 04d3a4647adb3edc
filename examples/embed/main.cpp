// A host in C++ that drives a policy from a thread of its own.
//
// Python is embedded for set-up alone: it loads the policy, observes once and exports the session. Then
// the GIL is given away, and a thread decides through the C interface: decisions, a snapshot, other
// decisions, a restore, and a continuation that must have equal bits. Prints times as JSON.
//
// Build: see docs/c_interface.md. Run: embed [device [preset [decisions]]], by default "cpu tiny 5", with the
// virtual environment that has torch active.
#include <Python.h>
#include <flashrt.h>
#include <signal.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

constexpr const char *kSetUp = R"(
import numpy as np
from flashrt_core.load import LoadOptions, load
from flashrt_core.policies.base import Observation

session = load(LoadOptions(device=device, preset=preset, precision=precision, prompt="pick up the cup"))
images = {view: np.full((64, 64, 3), 90, np.uint8) for view in session.processor.views}
session.decide(Observation(images, np.zeros(session.processor.state_dim, np.float32)))
export = session.export()
handle = export.handle
)";

// The Python error that is set, as one line of text.
std::string python_error() {
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  PyObject *name = type == nullptr ? nullptr : PyObject_GetAttrString(type, "__name__");
  PyObject *text = value == nullptr ? nullptr : PyObject_Str(value);
  const char *words[] = {name == nullptr ? nullptr : PyUnicode_AsUTF8(name),
                         text == nullptr ? nullptr : PyUnicode_AsUTF8(text)};
  std::string line = words[0] == nullptr ? "Python failed" : words[0];
  if (words[1] != nullptr && *words[1] != 0) line += std::string(": ") + words[1];
  if (type != nullptr && PyErr_GivenExceptionMatches(type, PyExc_ModuleNotFoundError)) {
    line += "; activate the virtual environment with torch and numpy (source .venv/bin/activate) and, in a checkout,"
            " set PYTHONPATH=.";
  }
  PyErr_Clear();
  for (PyObject *object : {name, text, type, value, trace}) Py_XDECREF(object);
  std::replace(line.begin(), line.end(), '\n', ' ');
  return line;
}

// Starts Python for the virtual environment that is active. Its signal handlers stay out: Ctrl-C would only set
// a flag that Python looks at when it runs next, and a host may not call it for hours.
void start_python(int argc, char **argv) {
  // ROS 2 from pip would start the interpreter in place of this program, to find libraries that are not needed.
  setenv("_ROS_WHEELS_BOOTSTRAP_COMPLETE", "1", 0);
  PyConfig config;
  PyConfig_InitPythonConfig(&config);
  config.install_signal_handlers = 0;
  config.parse_argv = 0;
  const char *active = std::getenv("VIRTUAL_ENV");
  PyStatus status = PyConfig_SetBytesArgv(&config, argc, argv);
  if (!PyStatus_Exception(status) && active != nullptr && *active != 0) {
    const std::string program = std::string(active) + "/bin/python3";
    status = PyConfig_SetBytesString(&config, &config.program_name, program.c_str());
  }
  struct sigaction ctrl_c{};
  sigaction(SIGINT, nullptr, &ctrl_c);
  if (!PyStatus_Exception(status)) status = Py_InitializeFromConfig(&config);
  PyConfig_Clear(&config);
  if (PyStatus_Exception(status)) {
    throw std::runtime_error(std::string("Python does not start: ") + (status.err_msg ? status.err_msg : "it ended"));
  }
  // Whoever imports Python's signal module first installs a handler all the same. Later imports do not.
  PyObject *module = PyImport_ImportModule("signal");
  if (module == nullptr) throw std::runtime_error(python_error());
  Py_DECREF(module);
  sigaction(SIGINT, &ctrl_c, nullptr);
}

// Runs Python source; its error becomes ours.
void run_python(PyObject *names, const char *source) {
  PyObject *result = PyRun_String(source, Py_file_input, names, names);
  if (result == nullptr) {
    throw std::runtime_error(python_error());
  }
  Py_DECREF(result);
}

void check(flashrt_status status, const char *what) {
  if (status == FLASHRT_OK) return;
  throw std::runtime_error(std::string(what) + ": " + flashrt_strerror(status) + ": " + flashrt_last_error());
}

class Policy {
 public:
  explicit Policy(flashrt_session *session) : session_(session) {
    flashrt_info info{};
    info.struct_size = sizeof info;
    check(flashrt_get_info(session, &info), "info");
    for (uint32_t index = 0; index < info.inputs; ++index) {
      flashrt_input input{};
      input.struct_size = sizeof input;
      check(flashrt_get_input(session, index, &input), "input");
      if (std::strncmp(input.name, "image.", 6) == 0) images_.push_back({index, input.bytes});
    }
    check(flashrt_find(session, FLASHRT_KIND_INPUT, "noise", &noise_), "noise");
    check(flashrt_find(session, FLASHRT_KIND_OUTPUT, "actions", &actions_), "actions");
    flashrt_output output{};
    output.struct_size = sizeof output;
    check(flashrt_get_output(session, actions_, &output), "actions");
    bytes_ = output.bytes;
  }

  // New images, grey levels that stand for what cameras see.
  void see(uint8_t level) {
    for (const auto &[index, bytes] : images_) {
      const std::vector<uint8_t> image(bytes, level);
      check(flashrt_write_input(session_, index, image.data(), image.size()), "image");
    }
  }

  std::vector<float> decide(unsigned seed, flashrt_report *report = nullptr) {
    draw(seed);
    check(flashrt_decide(session_, report), "decide");
    return actions();
  }

  // The next actions on the retained context.
  std::vector<float> act(unsigned seed) {
    draw(seed);
    check(flashrt_act(session_, 0, nullptr), "act");
    return actions();
  }

 private:
  struct Image {
    uint32_t index;
    uint64_t bytes;
  };

  void draw(unsigned seed) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal;
    std::vector<float> noise(bytes_ / sizeof(float));
    std::generate(noise.begin(), noise.end(), [&] { return normal(generator); });
    check(flashrt_write_input(session_, noise_, noise.data(), bytes_), "noise");
  }

  std::vector<float> actions() {
    std::vector<float> values(bytes_ / sizeof(float));
    check(flashrt_read_output(session_, actions_, values.data(), bytes_), "actions");
    return values;
  }

  flashrt_session *session_;
  std::vector<Image> images_;
  uint32_t noise_ = 0, actions_ = 0;
  uint64_t bytes_ = 0;
};

struct Result {
  bool stale_refused = false, bit_exact = false;
  std::vector<double> decide_us;
  double snapshot_us = 0, restore_us = 0;
  std::string error;
};

template <typename Call>
double timed_us(const Call &call) {
  const auto start = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
}

void drive(flashrt_session *session, int decisions, Result &result) try {
  Policy policy(session);
  for (int index = 0; index < decisions; ++index) {
    flashrt_report report{};
    report.struct_size = sizeof report;
    policy.see(static_cast<uint8_t>(40 + index));
    policy.decide(index, &report);
    result.decide_us.push_back(report.wall_us);
  }
  result.snapshot_us = timed_us([&] { check(flashrt_snapshot(session, "mark"), "snapshot"); });
  const std::vector<float> expected = policy.act(1000);
  policy.see(200);
  result.stale_refused = flashrt_act(session, 0, nullptr) == FLASHRT_E_STALE;
  const bool differs = policy.decide(2000) != expected;
  result.restore_us = timed_us([&] { check(flashrt_restore(session, "mark"), "restore"); });
  result.bit_exact = differs && policy.act(1000) == expected;
} catch (const std::exception &error) {
  result.error = error.what();
}

int run(const char *device, const char *preset, int decisions) {
  PyObject *names = PyModule_GetDict(PyImport_AddModule("__main__"));
  const bool gpu = std::strcmp(device, "cuda") == 0;
  for (const auto &[name, value] : {std::pair{"device", device}, {"preset", preset}, {"precision", gpu ? "bf16" : "fp32"}}) {
    PyObject *text = PyUnicode_FromString(value);
    PyDict_SetItemString(names, name, text);
    Py_DECREF(text);
  }
  run_python(names, kSetUp);
  auto *session = static_cast<flashrt_session *>(PyLong_AsVoidPtr(PyDict_GetItemString(names, "handle")));
  Result result;
  PyThreadState *saved = PyEval_SaveThread();  // gives the GIL away
  std::thread(drive, session, decisions, std::ref(result)).join();
  PyEval_RestoreThread(saved);
  run_python(names, "export.close()\nleft = session.decisions\nsession.engine.close()");
  const long left = PyLong_AsLong(PyDict_GetItemString(names, "left"));
  if (!result.error.empty()) throw std::runtime_error(result.error);
  std::vector<double> sorted = result.decide_us;
  std::sort(sorted.begin(), sorted.end());
  std::printf("{\"device\": \"%s\", \"decisions\": %d, \"decide_us\": %.1f, \"snapshot_us\": %.1f, \"restore_us\": %.1f, "
              "\"stale_refused\": %s, \"bit_exact\": %s, \"decisions_in_python\": %ld}\n",
              device, decisions, sorted[sorted.size() / 2], result.snapshot_us, result.restore_us,
              result.stale_refused ? "true" : "false", result.bit_exact ? "true" : "false", left);
  return result.stale_refused && result.bit_exact ? 0 : 1;
}

// How many decisions an argument asks for.
int count_of(const char *text) {
  int count = 0;
  const char *end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, count);
  if (error != std::errc() || stop != end || count < 1 || count > 1000000) {
    throw std::invalid_argument("decisions: expected a number from 1 to 1000000, got '" + std::string(text) + "'");
  }
  return count;
}

}  // namespace

int main(int argc, char **argv) {
  int status = 2;
  try {
    if (argc > 4) throw std::invalid_argument("expected at most three arguments: device, preset, decisions");
    const int decisions = argc > 3 ? count_of(argv[3]) : 5;
    start_python(argc, argv);
    status = run(argc > 1 ? argv[1] : "cpu", argc > 2 ? argv[2] : "tiny", decisions);
  } catch (const std::exception &error) {
    std::fprintf(stderr, "embed: %s\n", error.what());
  }
  return !Py_IsInitialized() || Py_FinalizeEx() == 0 ? status : 2;
}
