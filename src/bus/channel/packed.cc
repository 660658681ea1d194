#include "bus/channel/packed.h"

#include "tensorbus/status.h"

namespace tensorbus::bus {
namespace {

constexpr int deepest = 8;

// The parser recurses: a few kilobytes of brackets would end the stack.
class DepthCheck final : public nlohmann::json_sax<Json> {
 public:
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override { return ++depth_ <= deepest; }
  bool key(string_t&) override { return true; }
  bool end_object() override { return --depth_ >= 0; }
  bool start_array(std::size_t) override { return ++depth_ <= deepest; }
  bool end_array() override { return --depth_ >= 0; }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override {
    return false;
  }

 private:
  int depth_ = 0;
};

}  // namespace

std::string pack(const Json& value) {
  std::string bytes;
  Json::to_msgpack(value, bytes);
  return bytes;
}

Json unpack(std::string_view bytes, std::string_view what) {
  DepthCheck check;
  if (!Json::sax_parse(bytes.begin(), bytes.end(), &check, Json::input_format_t::msgpack)) {
    throw Error(Code::invalid_argument, "malformed " + std::string(what) + ": no MessagePack");
  }
  return Json::from_msgpack(bytes.begin(), bytes.end());
}

Json binary(std::string_view bytes) {
  return Json::binary(std::vector<std::uint8_t>(bytes.begin(), bytes.end()));
}

Fields::Fields(const Json& list, std::string_view what) : list_(list), what_(what) {
  if (!list_.is_array()) refuse("it is no list");
}

std::string Fields::string(std::size_t most) {
  const Json& field = any();
  if (!field.is_string()) refuse("a text is missing");
  const auto& text = field.get_ref<const std::string&>();
  if (text.size() > most) refuse("a text has " + std::to_string(text.size()) + " bytes");
  return text;
}

std::string Fields::bytes() {
  const Json& field = any();
  if (!field.is_binary()) refuse("bytes are missing");
  const auto& found = field.get_binary();
  return {found.begin(), found.end()};
}

std::int64_t Fields::integer() {
  const Json& field = any();
  if (!field.is_number_integer()) refuse("a number is missing");
  if (field.is_number_unsigned() && field.get<std::uint64_t>() > INT64_MAX) {
    refuse("a number is too large");
  }
  return field.get<std::int64_t>();
}

std::uint64_t Fields::natural(std::uint64_t most) {
  const Json& field = any();
  if (!field.is_number_unsigned()) refuse("a number is missing or negative");
  const auto number = field.get<std::uint64_t>();
  if (number > most) refuse("the number " + std::to_string(number) + " is too large");
  return number;
}

bool Fields::boolean() {
  const Json& field = any();
  if (!field.is_boolean()) refuse("a truth value is missing");
  return field.get<bool>();
}

std::vector<std::int64_t> Fields::integers(std::size_t most) {
  Fields each(list(most), what_);
  std::vector<std::int64_t> numbers;
  numbers.reserve(each.list_.size());
  while (each.next_ < each.list_.size()) numbers.push_back(each.integer());
  return numbers;
}

const Json& Fields::list(std::size_t most) {
  const Json& field = any();
  if (!field.is_array()) refuse("a list is missing");
  if (field.size() > most) refuse("a list has " + std::to_string(field.size()) + " items");
  return field;
}

const Json& Fields::any() {
  const Json& field = peek();
  ++next_;
  return field;
}

const Json& Fields::peek() const {
  if (next_ >= list_.size()) refuse("fields are missing");
  return list_[next_];
}

void Fields::end() const {
  if (next_ != list_.size()) refuse("it has too many fields");
}

void Fields::refuse(const std::string& why) const {
  throw Error(Code::invalid_argument, "malformed " + std::string(what_) + ": " + why);
}

}  // namespace tensorbus::bus
