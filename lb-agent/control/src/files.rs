//! The directory of a control plane: store, certificate authority, certificate, secret and kubeconfigs. The first start
//! creates them.

use std::fs;
use std::io::Write as _;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SanType,
};
use serde_json::json;

use crate::credentials::{SECRET, Tokens};
use crate::identity::Identity;

/// An error about the directory.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read or written.
    #[error("{path}: {cause}\nremedy: give --data a directory that this user may write")]
    File {
        /// Path of the file.
        path: String,
        /// The error of the system.
        cause: std::io::Error,
    },
    /// A certificate could not be made.
    #[error("certificate: {0}")]
    Certificate(#[from] rcgen::Error),
    /// The system has no source of randomness.
    #[error("no random numbers")]
    Random,
    /// No control plane was ever started in this directory.
    #[error("{0} has no control plane yet\nremedy: lb-agent serve --data {0}")]
    Empty(String),
    /// A file has unexpected content.
    #[error("{0} is damaged\nremedy: restore it from a backup")]
    Damaged(String),
}

/// The directory and the files in it.
#[derive(Clone, Debug)]
pub struct Files {
    dir: PathBuf,
}

/// Certificate and key of the server, in PEM.
#[derive(Debug)]
pub struct Serving {
    /// The certificate of the server, followed by that of the authority.
    pub chain: String,
    /// The private key in PEM.
    pub key: String,
}

const AUTHORITY: &str = "ca.crt";
const AUTHORITY_KEY: &str = "ca.key";
const SECRET_FILE: &str = "secret";
const ADDRESS: &str = "address";

impl Files {
    /// Takes a directory, and creates it if it does not exist.
    pub fn create(dir: &Path) -> Result<Self, Error> {
        let failed = |cause| Error::File { path: dir.display().to_string(), cause };
        fs::create_dir_all(dir).map_err(failed)?;
        Ok(Self { dir: dir.to_owned() })
    }

    /// Takes a directory in which a control plane was started before.
    pub fn open(dir: &Path) -> Result<Self, Error> {
        let files = Self { dir: dir.to_owned() };
        let is_there = files.path(AUTHORITY).is_file() && files.path(SECRET_FILE).is_file();
        if is_there { Ok(files) } else { Err(Error::Empty(dir.display().to_string())) }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Returns the path of the store.
    pub fn store(&self) -> PathBuf {
        self.path("store.redb")
    }

    fn read(&self, name: &str) -> Result<String, Error> {
        let path = self.path(name);
        fs::read_to_string(&path)
            .map_err(|cause| Error::File { path: path.display().to_string(), cause })
    }

    /// Writes a file that only its owner may read: whole or, after a crash, not at all.
    fn write(&self, name: &str, content: &[u8]) -> Result<(), Error> {
        let (path, new) = (self.path(name), self.path(&format!("{name}.new")));
        let write = || -> std::io::Result<()> {
            let mut options = fs::OpenOptions::new();
            options.write(true).create(true).truncate(true).mode(0o600);
            let mut file = options.open(&new)?;
            file.write_all(content)?;
            // The data is synced before the rename, because a crash could otherwise leave an empty file under the final
            // name.
            file.sync_all()?;
            fs::rename(&new, &path)
        };
        write().map_err(|cause| Error::File { path: path.display().to_string(), cause })
    }

    /// Returns the maker of tokens; the first call creates the secret.
    pub fn tokens(&self) -> Result<Tokens, Error> {
        let path = self.path(SECRET_FILE);
        // Tokens are derived from the secret, so a new one would make all of them invalid.
        if !path.exists() {
            let secret = Tokens::secret().map_err(|_unspecified| Error::Random)?;
            self.write(SECRET_FILE, &secret)?;
        }
        let bytes = fs::read(&path)
            .map_err(|cause| Error::File { path: path.display().to_string(), cause })?;
        let secret: [u8; SECRET] =
            bytes.try_into().map_err(|_bytes| Error::Damaged(path.display().to_string()))?;
        Ok(Tokens::new(&secret))
    }

    /// Returns a certificate for these addresses; the first call creates the authority.
    pub fn serving(&self, addresses: &[IpAddr]) -> Result<Serving, Error> {
        if !self.path(AUTHORITY).exists() || !self.path(AUTHORITY_KEY).exists() {
            let key = KeyPair::generate()?;
            let certificate = authority().self_signed(&key)?;
            self.write(AUTHORITY_KEY, key.serialize_pem().as_bytes())?;
            self.write(AUTHORITY, certificate.pem().as_bytes())?;
        }
        let key = KeyPair::from_pem(&self.read(AUTHORITY_KEY)?)?;
        let issuer = Issuer::new(authority(), key);
        // Clients trust the authority, so the server's own key may change with each start.
        let own = KeyPair::generate()?;
        let names = ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"];
        let mut params = CertificateParams::new(names.map(str::to_owned))?;
        params.distinguished_name = named("lb-agent");
        params.subject_alt_names.extend(addresses.iter().map(|it| SanType::IpAddress(*it)));
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(&own, &issuer)?;
        let chain = format!("{}{}", certificate.pem(), self.read(AUTHORITY)?);
        Ok(Serving { chain, key: own.serialize_pem() })
    }

    /// Stores the server's address, and writes the kubeconfig of the administrator.
    pub fn publish(&self, address: &str) -> Result<(), Error> {
        self.write(ADDRESS, address.as_bytes())?;
        let text = self.kubeconfig(&Identity::Admin)?;
        self.write("admin.kubeconfig", text.as_bytes())
    }

    /// Returns the kubeconfig of an identity in JSON, which is valid YAML.
    pub fn kubeconfig(&self, identity: &Identity) -> Result<String, Error> {
        let authority = base64(self.read(AUTHORITY)?.as_bytes());
        let server = self.read(ADDRESS)?;
        let (user, token) = (identity.user(), self.tokens()?.token(identity));
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "lb-agent",
            "clusters": [{"name": "lb-agent", "cluster": {"server": server, "certificate-authority-data": authority}}],
            "contexts": [{"name": "lb-agent", "context": {"cluster": "lb-agent", "user": user, "namespace": "default"}}],
            "users": [{"name": user, "user": {"token": token}}],
        });
        Ok(format!("{config:#}\n"))
    }
}

fn named(name: &str) -> DistinguishedName {
    let mut names = DistinguishedName::new();
    names.push(DnType::CommonName, name);
    names
}

/// The subject of the authority. Clients trust it across restarts, so it is constant.
fn authority() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = named("lb-agent control plane");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    params
}

/// Encodes in base64 with padding (RFC 4648, section 4).
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let word = chunk.iter().fold(0_u32, |word, it| word << 8 | u32::from(*it))
            // A short last chunk is filled up with zero bits.
            << (8 * (3 - chunk.len()));
        for place in 0..4 {
            let digit = (word >> (18 - 6 * place)) & 63;
            let letter = ALPHABET.get(digit as usize).copied().unwrap_or(b'=');
            text.push(char::from(if place > chunk.len() { b'=' } else { letter }));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn base64_of_rfc_4648() {
        let cases =
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")];
        for (text, expected) in cases {
            assert_eq!(base64(text.as_bytes()), expected);
        }
    }

    #[test]
    fn second_start_keeps_authority_and_tokens_private() {
        let directory = tempfile::tempdir().unwrap();
        let loopback = [IpAddr::from(Ipv4Addr::LOCALHOST)];
        assert!(matches!(Files::open(directory.path()), Err(Error::Empty(_))));
        let start = || {
            let files = Files::create(directory.path()).unwrap();
            let token = files.tokens().unwrap().token(&Identity::Admin);
            drop(files.serving(&loopback).unwrap());
            files.publish("https://127.0.0.1:1").unwrap();
            (token, files.read(AUTHORITY).unwrap())
        };
        assert_eq!(start(), start());
        let files = Files::open(directory.path()).unwrap();
        for name in [AUTHORITY_KEY, SECRET_FILE, "admin.kubeconfig"] {
            let mode = fs::metadata(files.path(name)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{name}");
        }
        let reader = files.kubeconfig(&Identity::Reader).unwrap();
        let config: serde_json::Value = serde_json::from_str(&reader).unwrap();
        assert_eq!(config["clusters"][0]["cluster"]["server"], "https://127.0.0.1:1");
    }
}
