//! Authentication: bearer tokens that carry their owner and a proof, so that none has to be stored.

use ring::hmac;
use ring::rand::{SecureRandom as _, SystemRandom};

use crate::identity::Identity;

/// Length of the secret, in bytes.
pub const SECRET: usize = 32;

/// Makes tokens and identifies their owners.
#[derive(Debug)]
pub struct Tokens {
    key: hmac::Key,
}

impl Tokens {
    /// Takes the secret that authenticates all tokens (HMAC).
    pub fn new(secret: &[u8; SECRET]) -> Self {
        Self { key: hmac::Key::new(hmac::HMAC_SHA256, secret) }
    }

    /// Makes a random secret.
    pub fn secret() -> Result<[u8; SECRET], ring::error::Unspecified> {
        let mut secret = [0; SECRET];
        SystemRandom::new().fill(&mut secret)?;
        Ok(secret)
    }

    /// Returns the token of this identity.
    pub fn token(&self, identity: &Identity) -> String {
        let owner = identity.word();
        let proof = hmac::sign(&self.key, owner.as_bytes());
        format!("{owner}.{}", hex(proof.as_ref()))
    }

    /// Returns the owner of a token; `None` if its proof is wrong.
    pub fn identity(&self, token: &str) -> Option<Identity> {
        let (owner, proof) = token.rsplit_once('.')?;
        let digit = |it: &[u8]| u8::from_str_radix(std::str::from_utf8(it).ok()?, 16).ok();
        let proof: Option<Vec<u8>> = proof.as_bytes().chunks(2).map(digit).collect();
        // Compares in constant time, so that a proof cannot be guessed digit by digit.
        hmac::verify(&self.key, owner.as_bytes(), &proof?).ok()?;
        Identity::of_word(owner)
    }
}

/// Returns two lower-case hexadecimal digits for each byte.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let digit = |it: u8| char::from_digit(it.into(), 16).unwrap_or('0');
    bytes.iter().flat_map(|it| [digit(it >> 4), digit(it & 15)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_returns_the_identity_it_was_made_for() {
        let tokens = Tokens::new(&[7; SECRET]);
        for identity in [Identity::Admin, Identity::Node("a.example".into()), Identity::Reader] {
            assert_eq!(tokens.identity(&tokens.token(&identity)), Some(identity));
        }
    }

    #[test]
    fn changed_or_foreign_token_is_invalid() {
        let tokens = Tokens::new(&[7; SECRET]);
        let token = tokens.token(&Identity::Node("a".into()));
        let other = Tokens::new(&[8; SECRET]).token(&Identity::Admin);
        let raised = token.replace("node-a", "admin");
        for wrong in [raised.as_str(), &other, "", "admin", "admin.", "admin.zz", "admin.é"] {
            assert_eq!(tokens.identity(wrong), None, "{wrong}");
        }
    }
}
