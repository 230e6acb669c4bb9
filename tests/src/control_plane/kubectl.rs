//! kubectl as the client of the API server: a test changes objects as a person would.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use tempfile::NamedTempFile;

use super::binaries::binary;
use crate::process::{Home, run};

/// kubectl with the kubeconfig of one API server.
#[derive(Debug, Clone)]
pub struct Kubectl {
    place: Home,
    kubeconfig: PathBuf,
    /// The HOME of kubectl, for its discovery cache, which must not be the user's own.
    home: PathBuf,
}

impl Kubectl {
    pub(crate) fn new(place: Home, kubeconfig: &Path, home: &Path) -> Self {
        Self { place, kubeconfig: kubeconfig.to_owned(), home: home.to_owned() }
    }

    /// Returns the kubeconfig that it uses.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Runs kubectl and returns its output.
    pub fn run(&self, arguments: &[&str]) -> Result<String> {
        let mut command = self.place.command(&binary("kubectl")?)?;
        run(
            command
                .args(arguments)
                .arg("--request-timeout=20s")
                .env("KUBECONFIG", &self.kubeconfig)
                // kubectl ends before its garbage needs collection.
                .env("GOGC", "off")
                .env("HOME", &self.home),
            "",
        )
    }

    /// Creates or changes the objects of `manifests`: any number of YAML or JSON documents.
    pub fn apply(&self, manifests: &str) -> Result<()> {
        self.apply_with(manifests, &[])
    }

    /// Writes the `status` of existing objects, as kubelets and load balancers do.
    pub fn apply_status(&self, manifests: &str) -> Result<()> {
        self.apply_with(manifests, &["--subresource=status"])
    }

    /// Returns the objects that a dry run would create; fails if the server would reject one of them.
    pub(crate) fn check(&self, manifests: &str) -> Result<String> {
        self.with_file(manifests, &["create", "--dry-run=server", "--validate=strict"])
    }

    fn apply_with(&self, manifests: &str, more: &[&str]) -> Result<()> {
        let apply = ["apply", "--server-side", "--force-conflicts"];
        self.with_file(manifests, &[&apply, more].concat()).map(drop)
    }

    /// Runs kubectl with a file of manifests. With a pipe and many objects, both sides could wait for each other.
    fn with_file(&self, manifests: &str, arguments: &[&str]) -> Result<String> {
        let mut file = NamedTempFile::with_suffix_in(".yaml", &self.home)
            .with_context(|| format!("manifest in {}", self.home.display()))?;
        file.write_all(manifests.as_bytes())
            .with_context(|| format!("manifest {}", file.path().display()))?;
        let path = file.path().display().to_string();
        self.run(&[arguments, &["-f", &path]].concat())
    }
}
