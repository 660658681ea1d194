#include "base/secret.h"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <cstring>

#include "tensorbus/status.h"

namespace tensorbus {

Id16 random_id() {
  Id16 id;
  if (RAND_bytes(reinterpret_cast<unsigned char*>(id.data()), static_cast<int>(id.size())) != 1) {
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
  std::string proof(proof_size, '\0');
  unsigned size = 0;
  if (HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
           reinterpret_cast<const unsigned char*>(text.data()), text.size(),
           reinterpret_cast<unsigned char*>(proof.data()), &size) == nullptr ||
      size != proof_size) {
    throw Error(Code::failed, "HMAC-SHA256 is not available");
  }
  return proof;
}

bool proofs_equal(std::string_view a, std::string_view b) noexcept {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace tensorbus
