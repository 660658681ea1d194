#include "base/secret.h"

#include <gtest/gtest.h>

#include <set>

namespace tensorbus {
namespace {

// RFC 4231, cases 1, 2, 3, 6 and 7: short keys, and keys that are longer than a block.
TEST(Secret, ProofsAreHmacSha256) {
  EXPECT_EQ(to_hex(proof_of(std::string(20, '\x0b'), "Hi There")),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(to_hex(proof_of("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(to_hex(proof_of(std::string(20, '\xaa'), std::string(50, '\xdd'))),
            "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  EXPECT_EQ(to_hex(proof_of(std::string(131, '\xaa'),
                            "Test Using Larger Than Block-Size Key - Hash Key First")),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  EXPECT_EQ(to_hex(proof_of(std::string(131, '\xaa'),
                            "This is a test using a larger than block-size key and a larger than "
                            "block-size data. The key needs to be hashed before being used by the "
                            "HMAC algorithm.")),
            "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
}

TEST(Secret, AnEmptySecretAndAnEmptyTextHaveAProof) {
  EXPECT_EQ(to_hex(proof_of({}, {})),
            "b613679a0814d9ec772f95d778c35fc5ff1697c493715653c6c712144292c5ad");
}

TEST(Secret, ProofsAreComparedByTheirBytes) {
  const std::string proof = proof_of("secret", "text");
  EXPECT_TRUE(proofs_equal(proof, proof_of("secret", "text")));
  EXPECT_FALSE(proofs_equal(proof, proof_of("secret", "test")));
  EXPECT_FALSE(proofs_equal(proof, proof.substr(1)));
}

TEST(Secret, NoIdComesTwice) {
  std::set<Id16> ids;
  for (int i = 0; i < 1000; ++i) ids.insert(random_id());
  EXPECT_EQ(ids.size(), 1000u);
}

}  // namespace
}  // namespace tensorbus
