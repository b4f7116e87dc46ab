// What Python sees of the device beside what PyTorch shows of any.
#include "device.h"
#include "process_group.h"
#include "runtime.h"

#include <torch/csrc/Generator.h>
#include <torch/csrc/utils/pybind.h>

namespace {

void set_callback(py::object callback) {
  if (callback.is_none()) {
    sim::set_synchronization_callback(nullptr);
    return;
  }
  // Never released: a thread may be in a call of it.
  auto* kept = new py::object(std::move(callback));
  sim::set_synchronization_callback([kept](const std::string& reason) {
    py::gil_scoped_acquire acquire;
    (*kept)(reason);
  });
}

} // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("configure", [](int device_count, const std::string& delay, uint64_t seed, int64_t late_ms, int64_t memory) {
    auto& settings = sim::settings();
    settings.device_count = device_count;
    settings.delay = delay == "late" ? sim::Delay::kLate : delay == "random" ? sim::Delay::kRandom : sim::Delay::kNone;
    settings.seed = seed;
    settings.late_ms = late_ms;
    settings.memory_bytes = memory;
  });
  m.def("drain", &sim::drain);
  m.def("synchronizations", &sim::synchronizations);
  m.def("set_synchronization_callback", &set_callback);
  m.def("default_generator", [](int device) { return sim::default_generator(device); });
  m.def("register_host_memory", [](uintptr_t pointer, size_t size) {
    return sim::register_host_memory(reinterpret_cast<void*>(pointer), size);
  });
  m.def("unregister_host_memory", [](uintptr_t pointer) {
    py::gil_scoped_release release;
    sim::unregister_host_memory(reinterpret_cast<void*>(pointer));
  });
  py::class_<sim::Span>(m, "Span", py::module_local())
      .def_readonly("device", &sim::Span::device)
      .def_readonly("stream", &sim::Span::stream)
      .def_readonly("name", &sim::Span::name)
      .def_readonly("begin_ns", &sim::Span::begin_ns)
      .def_readonly("end_ns", &sim::Span::end_ns);
  m.def("start_timeline", &sim::start_timeline);
  m.def("stop_timeline", &sim::stop_timeline);
  m.def("make_backend", &sim::make_backend);
}
