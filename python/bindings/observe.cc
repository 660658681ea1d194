// Numbers and timelines of this process.
#include "bindings.h"
#include "bus_client.h"
#include "gil.h"
#include "observe/show/trace_file.h"
#include "tensorbus/stats.h"

namespace tensorbus::python {
namespace {

nb::object value_of(const Series& series) {
  if (!series.count) return nb::float_(series.value);
  nb::dict durations;
  durations["count"] = *series.count;
  durations["sum"] = series.value;
  return durations;
}

class Trace {
 public:
  explicit Trace(std::string folder)
      : file_(std::make_unique<File>(observe::open_trace(std::move(folder)))) {}
  std::string path() const { return (*file_)->path(); }
  void flush() { (*file_)->flush(); }

 private:
  using File = std::shared_ptr<observe::TraceFile>;
  Owned<File> file_;
};

nb::dict stats_as_dict() {
  Stats found;
  {
    const WithoutGil without_gil;
    found = stats();
  }
  nb::dict all;
  for (const auto& [name, each] : found) {
    nb::list list;
    for (const Series& series : each) {
      nb::dict labels;
      for (const auto& [label, text] : series.labels) labels[label.c_str()] = nb::str(text.c_str());
      list.append(nb::make_tuple(labels, value_of(series)));
    }
    all[name.c_str()] = list;
  }
  return all;
}

}  // namespace

void bind_observe(nb::module_& module) {
  module.def("stats", &stats_as_dict,
             nb::sig("def stats() -> dict[str, list[tuple[dict[str, str], object]]]"),
             "By name, each series with its labels.");
  nb::class_<Trace>(module, "TraceFile", "See tensorbus.trace.")
      .def_prop_ro("path", &Trace::path)
      .def("flush", &Trace::flush, Release());
  module.def(
      "open_trace", [](std::string folder) { return std::make_unique<Trace>(std::move(folder)); },
      nb::arg("folder"), Release());
}

}  // namespace tensorbus::python
