//! The credentials of a service account in a pod: three files at a fixed path, and two environment variables.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::wait::wait_until_ok;

/// Where every pod has them; clients look nowhere else.
pub(crate) const PLACE: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// The prefix of a file that names the process that still needs the place.
pub(crate) const CLAIM: &str = "lb-test-";
const SOON: Duration = Duration::from_secs(10);

/// The files of one service account. Processes that shall see them get a mount namespace of their own.
#[derive(Debug)]
pub struct ServiceAccount {
    directory: PathBuf,
    server: SocketAddr,
    /// A file in [`PLACE`]: nobody else who tests here removes it as long as it has one.
    claim: PathBuf,
}

impl ServiceAccount {
    /// Writes the files into `directory`: token, authority of the server's certificate, namespace.
    pub(crate) fn new(
        directory: &Path,
        server: SocketAddr,
        files: [(&str, &str); 3],
    ) -> Result<Self> {
        let claim = claim()?;
        fs::create_dir_all(directory)
            .with_context(|| format!("directory {}", directory.display()))?;
        for (name, content) in files {
            let file = directory.join(name);
            fs::write(&file, content).with_context(|| format!("file {}", file.display()))?;
        }
        Ok(Self { directory: directory.to_owned(), server, claim })
    }

    /// Returns the directory that belongs at [`PLACE`].
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the variables that say where the API server is.
    pub(crate) fn environment(&self) -> [(String, String); 2] {
        let (host, port) = (self.server.ip().to_string(), self.server.port().to_string());
        [("KUBERNETES_SERVICE_HOST".into(), host), ("KUBERNETES_SERVICE_PORT".into(), port)]
    }
}

/// Makes the place to mount them at, and a file in it: another process may remove the place as long as it is empty, and
/// with it whatever is mounted there.
fn claim() -> Result<PathBuf> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let file = Path::new(PLACE).join(format!("{CLAIM}{}-{number}", process::id()));
    wait_until_ok(SOON, "a place for service accounts", || {
        fs::create_dir_all(PLACE).with_context(|| format!("directory {PLACE}"))?;
        fs::write(&file, "").with_context(|| format!("file {}", file.display()))
    })?;
    Ok(file)
}

impl Drop for ServiceAccount {
    fn drop(&mut self) {
        drop(fs::remove_file(&self.claim));
        // Fails where somebody else keeps something in it, which is as it should be.
        for path in Path::new(PLACE).ancestors().take(3) {
            drop(fs::remove_dir(path));
        }
    }
}
