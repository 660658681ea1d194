#include <fmt/format.h>

#include <charconv>

#include "os/net/tcp.h"
#include "tensorbus/store.h"

namespace tensorbus {
namespace {

struct SchemeName {
  std::string_view name;
  StoreUrl::Scheme scheme;
  std::uint16_t port;
};

constexpr SchemeName scheme_names[] = {
    {"memory", StoreUrl::Scheme::memory, 0},
    {"tensorbus", StoreUrl::Scheme::tensorbus, 29500},
    {"tcpstore", StoreUrl::Scheme::tcpstore, 29500},
    {"etcd", StoreUrl::Scheme::etcd, 2379},
};

// The URL's own text may hold a password, so messages show only the part that is wrong.
[[noreturn]] void refuse(const std::string& reason) {
  throw Error(Code::invalid_argument,
              "store URL: " + reason +
                  " (expected scheme://[user:password@]host[:port][,host:port...][/namespace])");
}

StoreUrl::Host parse_host(std::string_view text, std::uint16_t default_port) {
  StoreUrl::Host host;
  std::string_view rest;
  if (text.starts_with('[')) {
    const auto end = text.find(']');
    if (end == std::string_view::npos) refuse(fmt::format("\"{}\" lacks a \"]\"", text));
    host.name = text.substr(1, end - 1);
    rest = text.substr(end + 1);
  } else {
    const auto colon = text.find(':');
    host.name = text.substr(0, colon);
    rest = colon == std::string_view::npos ? "" : text.substr(colon);
    if (rest.find(':', 1) != std::string_view::npos) {
      refuse(fmt::format("IPv6 address \"{}\" must stand in brackets", text));
    }
  }
  if (host.name.empty()) refuse("the host is missing");
  host.port = default_port;
  if (!rest.empty()) {
    const std::string_view digits = rest.substr(1);
    const auto [end, failure] =
        std::from_chars(digits.data(), digits.data() + digits.size(), host.port);
    if (rest.front() != ':' || failure != std::errc() || end != digits.data() + digits.size() ||
        host.port == 0) {
      refuse(fmt::format("\"{}\" is not a port (1 to 65535)", digits));
    }
  }
  return host;
}

std::string percent_decode(std::string_view text) {
  std::string decoded;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      decoded += text[i];
      continue;
    }
    unsigned value = 0;
    const char* digits = text.data() + i + 1;
    if (i + 2 >= text.size() || std::from_chars(digits, digits + 2, value, 16).ptr != digits + 2) {
      refuse("user or password holds a \"%\" that is not followed by two hexadecimal digits");
    }
    decoded += static_cast<char>(value);
    i += 2;
  }
  return decoded;
}

}  // namespace

StoreUrl StoreUrl::parse(std::string_view text) {
  const auto mark = text.find("://");
  if (mark == std::string_view::npos) refuse("it has no scheme");
  const SchemeName* known = nullptr;
  for (const SchemeName& candidate : scheme_names) {
    if (candidate.name == text.substr(0, mark)) known = &candidate;
  }
  if (known == nullptr) {
    refuse(fmt::format("unknown scheme \"{}\": use tensorbus, tcpstore, etcd or memory",
                       text.substr(0, mark)));
  }
  StoreUrl url;
  url.scheme = known->scheme;
  std::string_view rest = text.substr(mark + 3);
  if (const auto slash = rest.find('/'); slash != std::string_view::npos) {
    url.space = rest.substr(slash + 1);
    rest = rest.substr(0, slash);
    if (url.space.ends_with('/')) url.space.pop_back();
    if (url.space.find('/') != std::string::npos) {
      refuse(fmt::format("namespace \"{}\" holds a \"/\"", url.space));
    }
  }
  if (const auto at = rest.rfind('@'); at != std::string_view::npos) {
    const std::string_view login = rest.substr(0, at);
    const auto colon = login.find(':');
    url.user = percent_decode(login.substr(0, colon));
    if (colon != std::string_view::npos) url.password = percent_decode(login.substr(colon + 1));
    rest = rest.substr(at + 1);
    if (url.scheme != Scheme::etcd) refuse("user and password are for etcd only");
  }
  if (url.scheme == Scheme::memory) {
    if (rest.empty()) refuse("memory:// needs a name");
    url.hosts.push_back({std::string(rest), 0});
    return url;
  }
  while (true) {
    const auto comma = rest.find(',');
    url.hosts.push_back(parse_host(rest.substr(0, comma), known->port));
    if (comma == std::string_view::npos) break;
    rest = rest.substr(comma + 1);
  }
  if (url.hosts.size() > 1 && url.scheme != Scheme::etcd) {
    refuse(fmt::format("several hosts are for etcd only, not for {}", known->name));
  }
  return url;
}

std::string StoreUrl::space_or(const std::string& given) const {
  if (space.empty()) return given;
  if (given != "default" && given != space) {
    throw Error(
        Code::invalid_argument,
        fmt::format("the store URL names namespace \"{}\", the argument \"{}\"; give one of "
                    "them",
                    space, given));
  }
  return space;
}

std::string StoreUrl::to_string() const {
  std::string text;
  for (const SchemeName& candidate : scheme_names) {
    if (candidate.scheme == scheme) text = std::string(candidate.name) + "://";
  }
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    if (i > 0) text += ",";
    text += scheme == Scheme::memory ? hosts[i].name : os::host_port(hosts[i].name, hosts[i].port);
  }
  return space.empty() ? text : text + "/" + space;
}

KeyScope::KeyScope(std::string space, std::string component) {
  const auto check = [](std::string_view what, const std::string& name) {
    if (name.empty()) throw Error(Code::invalid_argument, fmt::format("{} is empty", what));
    if (name.find('/') != std::string::npos) {
      throw Error(Code::invalid_argument,
                  fmt::format("{} \"{}\" holds a \"/\", which separates the parts of a full key",
                              what, name));
    }
  };
  check("namespace", space);
  check("component", component);
  prefix_ = space + "/" + component + "/";
}

std::string KeyScope::full_pattern(std::string_view pattern) const {
  std::string full;
  for (const char c : prefix_) {
    if (c == '*' || c == '?' || c == '[') {
      full.append({'[', c, ']'});
    } else {
      full += c;
    }
  }
  return full.append(pattern);
}

}  // namespace tensorbus
