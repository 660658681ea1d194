#include "base/secret.h"

// The plain functions, not EVP, with which every cipher that there is would be linked in.
#define OPENSSL_SUPPRESS_DEPRECATED
#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <sys/random.h>

#include <cstring>

#include "tensorbus/status.h"

namespace tensorbus {
namespace {

using Digest = std::array<unsigned char, SHA256_DIGEST_LENGTH>;
using Block = std::array<unsigned char, SHA256_CBLOCK>;

Digest sha256(std::string_view first, std::string_view second = {}) {
  SHA256_CTX state;
  Digest digest;
  SHA256_Init(&state);
  SHA256_Update(&state, first.data(), first.size());
  SHA256_Update(&state, second.data(), second.size());
  SHA256_Final(digest.data(), &state);
  return digest;
}

template <typename Bytes>
std::string_view text_of(const Bytes& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// A key that is longer than a block stands for its digest.
Block key_block(std::string_view key) {
  Block block{};
  Digest digest;
  if (key.size() > block.size()) {
    digest = sha256(key);
    key = text_of(digest);
  }
  if (!key.empty()) std::memcpy(block.data(), key.data(), key.size());
  return block;
}

Block padded(Block key, unsigned char pad) {
  for (unsigned char& byte : key) byte = static_cast<unsigned char>(byte ^ pad);
  return key;
}

}  // namespace

Id16 random_id() {
  Id16 id;
  if (::getentropy(id.data(), id.size()) != 0) {
    throw Error(Code::failed, "the system has no random numbers");
  }
  return id;
}

std::uint64_t random_number() {
  std::uint64_t number = 0;
  while (number == 0) {
    const Id16 id = random_id();
    std::memcpy(&number, id.data(), sizeof number);
  }
  return number;
}

std::string_view view(const Id16& id) noexcept { return {id.data(), id.size()}; }

std::string to_hex(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return text;
}

std::string proof_of(std::string_view secret, std::string_view text) {
  const Block key = key_block(secret);
  const Digest inner = sha256(text_of(padded(key, 0x36)), text);
  return std::string(text_of(sha256(text_of(padded(key, 0x5c)), text_of(inner))));
}

bool proofs_equal(std::string_view a, std::string_view b) noexcept {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace tensorbus
