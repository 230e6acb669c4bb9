//! The paths of the control plane's binaries.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

/// Finds the binary of this name: in `KUBEBUILDER_ASSETS`, else where `cargo xtask setup` put it.
pub fn binary(name: &str) -> Result<PathBuf> {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("control-plane/bin");
    let given = env::var_os("KUBEBUILDER_ASSETS").map(PathBuf::from);
    let found = given
        .into_iter()
        .chain([built])
        .map(|directory| directory.join(name))
        .find(|file| file.is_file());
    match found {
        Some(file) => Ok(file),
        None => bail!(
            "{name} is neither in KUBEBUILDER_ASSETS nor in tests/control-plane/bin\n\
             remedy: cargo xtask setup"
        ),
    }
}
