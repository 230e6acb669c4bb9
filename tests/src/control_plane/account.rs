//! What a pod finds of its service account: three files, at a path that cannot be chosen, and two variables.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// Where every pod has them; clients look nowhere else.
pub(crate) const PLACE: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// The files of one service account. Processes that shall see them get a mount namespace of their own.
#[derive(Debug)]
pub struct ServiceAccount {
    folder: PathBuf,
    server: SocketAddr,
}

impl ServiceAccount {
    /// Writes the files into `folder`: token, authority of the server's certificate, namespace.
    pub(crate) fn new(folder: &Path, server: SocketAddr, files: [(&str, &str); 3]) -> Result<Self> {
        // The place to mount them at; ours to remove as far as it stays empty.
        for path in [Path::new(PLACE), folder] {
            fs::create_dir_all(path).with_context(|| format!("folder {}", path.display()))?;
        }
        for (name, content) in files {
            let file = folder.join(name);
            fs::write(&file, content).with_context(|| format!("file {}", file.display()))?;
        }
        Ok(Self { folder: folder.to_owned(), server })
    }

    /// Returns the folder that belongs at [`PLACE`].
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the variables that say where the API server is.
    pub(crate) fn environment(&self) -> [(String, String); 2] {
        let (host, port) = (self.server.ip().to_string(), self.server.port().to_string());
        [("KUBERNETES_SERVICE_HOST".into(), host), ("KUBERNETES_SERVICE_PORT".into(), port)]
    }
}

impl Drop for ServiceAccount {
    fn drop(&mut self) {
        // Fails where somebody else keeps something in it, which is as it should be.
        for path in Path::new(PLACE).ancestors().take(3) {
            drop(fs::remove_dir(path));
        }
    }
}
