//! The credentials of a service account in a pod: three files at a fixed path, and two environment variables.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::wait::wait_until_ok;

/// The path at which every pod has these files; clients read no other path.
pub(crate) const DIRECTORY: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// The prefix of a file named after the process that still needs this path.
pub(crate) const CLAIM: &str = "lb-test-";
const SOON: Duration = Duration::from_secs(10);

/// The files of one service account. Processes that use them get a mount namespace of their own.
#[derive(Debug)]
pub struct ServiceAccount {
    directory: PathBuf,
    server: SocketAddr,
    /// A file in [`DIRECTORY`], which keeps other test processes from removing that directory.
    claim: PathBuf,
}

impl ServiceAccount {
    /// Writes the files into `directory`: token, certificate authority of the server, namespace.
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

    /// Returns the directory to mount at [`DIRECTORY`].
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the environment variables with the API server's address and port.
    pub(crate) fn environment(&self) -> [(String, String); 2] {
        let (host, port) = (self.server.ip().to_string(), self.server.port().to_string());
        [("KUBERNETES_SERVICE_HOST".into(), host), ("KUBERNETES_SERVICE_PORT".into(), port)]
    }
}

/// Makes the mount point and a file in it: another process may remove the directory as long as it is empty, and with it
/// a mount on it.
fn claim() -> Result<PathBuf> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let file = Path::new(DIRECTORY).join(format!("{CLAIM}{}-{number}", process::id()));
    wait_until_ok(SOON, "a place for service accounts", || {
        fs::create_dir_all(DIRECTORY).with_context(|| format!("directory {DIRECTORY}"))?;
        fs::write(&file, "").with_context(|| format!("file {}", file.display()))
    })?;
    Ok(file)
}

impl Drop for ServiceAccount {
    fn drop(&mut self) {
        drop(fs::remove_file(&self.claim));
        // This fails as long as another process has a file in it, which is intended.
        for path in Path::new(DIRECTORY).ancestors().take(3) {
            drop(fs::remove_dir(path));
        }
    }
}
