#include "plan/model.h"

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

ModelTensor tensor_of(const json& entry, const ModelDefaults& defaults, TablesCache& cache) {
  const Dtype source = dtype_of(entry, "dtype", defaults.dtype);
  const Types types{source, dtype_of(entry, "target_dtype", source)};
  const std::string source_layout = layout_of(entry, "source", defaults.source);
  const std::string target_layout = layout_of(entry, "target", defaults.target);
  const Tables& tables = cache.get(source_layout, target_layout);
  return {entry.at("name").get<std::string>(), Plan(tables, shape_of(entry.at("shape")), types)};
}

}  // namespace

Model parse_model(std::string_view text, const ModelDefaults& defaults) {
  const json list = json::parse(text, nullptr, false);
  if (!list.is_array()) {
    throw Error(Code::invalid_argument,
                "the model is not a JSON list of {\"name\", \"shape\", \"dtype\", \"source\", "
                "\"target\"}");
  }
  Model model;
  TablesCache cache;
  for (const json& entry : list) {
    const std::string which = "tensor " + std::to_string(model.size()) + " of the model";
    try {
      model.push_back(tensor_of(entry, defaults, cache));
    } catch (const json::exception& error) {
      throw Error(Code::invalid_argument,
                  which +
                      ": expected \"name\", \"shape\" and optional \"dtype\", "
                      "\"target_dtype\", \"source\", \"target\" (" +
                      error.what() + ")");
    } catch (const Error& error) {
      throw Error(error.code(), which + ": " + error.what());
    }
  }
  return model;
}

}  // namespace tensorbus::plan
