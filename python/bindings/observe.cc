// Numbers and timelines of this process.
#include "bindings.h"
#include "bus_client.h"
#include "gil.h"
#include "observe/openmetrics.h"
#include "observe/registry.h"
#include "observe/show/metrics_page.h"
#include "observe/show/trace_file.h"

namespace tensorbus::python {
namespace {

nb::dict to_dict(const observe::Labels& labels) {
  nb::dict dict;
  for (const auto& [name, value] : labels) dict[nb::str(name.c_str())] = nb::str(value.c_str());
  return dict;
}

nb::object value_of(const observe::Family& family, const observe::Sample& sample) {
  if (family.kind != observe::MetricKind::histogram) return nb::float_(sample.value);
  nb::dict distribution;
  distribution["count"] = sample.distribution.count;
  distribution["sum"] = sample.distribution.sum;
  return distribution;
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

nb::dict stats() {
  observe::Families families;
  {
    const WithoutGil without_gil;
    families = observe::registry().collect();
  }
  nb::dict all;
  for (const auto& [name, family] : families.all()) {
    nb::list samples;
    for (const observe::Sample& sample : family.samples) {
      samples.append(nb::make_tuple(to_dict(sample.labels), value_of(family, sample)));
    }
    all[nb::str(name.c_str())] = samples;
  }
  return all;
}

}  // namespace

void bind_observe(nb::module_& module) {
  module.def("stats", &stats,
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
