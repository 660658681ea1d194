#include "plan/report/model.h"

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>

#include "tensorbus/status.h"

namespace tensorbus::plan {
namespace {

using nlohmann::json;

Shape shape_of(const json& value) {
  if (value.is_string()) return parse_shape(value.get<std::string>());
  return value.get<Shape>();
}

Dtype dtype_of(const json& entry, const char* key, Dtype otherwise) {
  return entry.contains(key) ? parse_dtype(entry.at(key).get<std::string>()) : otherwise;
}

std::string layout_of(const json& entry, const char* side, const std::optional<Layout>& otherwise) {
  if (entry.contains(side)) return entry.at(side).get<std::string>();
  if (otherwise.has_value()) return to_string(*otherwise);
  throw Error(Code::invalid_argument,
              std::string("it has no ") + side + " layout and there is no default one");
}

// Tensors between the same two layouts share their tables.
class TablesCache {
 public:
  const Tables& get(const std::string& source, const std::string& target) {
    const auto known = known_.find({source, target});
    if (known != known_.end()) return known->second;
    Tables tables(parse_layout(source), parse_layout(target));
    return known_.emplace(std::pair(source, target), std::move(tables)).first->second;
  }

 private:
  std::map<std::pair<std::string, std::string>, Tables> known_;
};

void check_fields(const json& entry) {
  constexpr std::array<std::string_view, 6> fields = {"name",         "shape",  "dtype",
                                                      "target_dtype", "source", "target"};
  if (!entry.is_object()) throw Error(Code::invalid_argument, "it is no JSON object");
  for (const auto& [field, _] : entry.items()) {
    if (std::ranges::find(fields, field) != fields.end()) continue;
    throw Error(Code::invalid_argument,
                "unknown field \"" + field +
                    "\"; there are name, shape, dtype, target_dtype, source and target");
  }
  for (const char* field : {"name", "shape"}) {
    if (!entry.contains(field)) {
      throw Error(Code::invalid_argument, std::string("it has no \"") + field + "\"");
    }
  }
}

// The library's message without the name it gives to its exception.
std::string reason(const json::exception& error) {
  const std::string message = error.what();
  const std::size_t end = message.find("] ");
  return end == std::string::npos ? message : message.substr(end + 2);
}

ModelTensor tensor_of(const json& entry, const ModelDefaults& defaults, TablesCache& cache) {
  check_fields(entry);
  const Dtype source = dtype_of(entry, "dtype", defaults.dtype);
  const Types types{source, dtype_of(entry, "target_dtype", source)};
  const std::string source_layout = layout_of(entry, "source", defaults.source);
  const std::string target_layout = layout_of(entry, "target", defaults.target);
  const Tables& tables = cache.get(source_layout, target_layout);
  return {entry.at("name").get<std::string>(), Plan(tables, shape_of(entry.at("shape")), types)};
}

json parse_list(std::string_view text) {
  json list;
  try {
    list = json::parse(text);
  } catch (const json::exception& error) {
    throw Error(Code::invalid_argument, "the model is not JSON: " + reason(error));
  }
  if (!list.is_array()) {
    throw Error(Code::invalid_argument,
                "the model is not a JSON list of {\"name\", \"shape\", \"dtype\", \"source\", "
                "\"target\"}");
  }
  return list;
}

}  // namespace

Model parse_model(std::string_view text, const ModelDefaults& defaults) {
  Model model;
  TablesCache cache;
  for (const json& entry : parse_list(text)) {
    const std::string which = "tensor " + std::to_string(model.size()) + " of the model";
    try {
      model.push_back(tensor_of(entry, defaults, cache));
    } catch (const json::exception& error) {
      throw Error(
          Code::invalid_argument,
          which + ": a field holds something of another kind than expected: " + reason(error));
    } catch (const Error& error) {
      throw Error(error.code(), which + ": " + error.what());
    }
  }
  return model;
}

}  // namespace tensorbus::plan
