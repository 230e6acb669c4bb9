//! The Kubernetes control plane of the tests, built from Go modules (`tests/control-plane`).
//!
//! The binaries go to a cache outside the clone, in a directory named after their sources; `tests/control-plane/bin`
//! links to it. A binary that `KUBEBUILDER_ASSETS` holds is not built: the tests use it from there.

use std::env;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{self, Command};

use anyhow::{Context as _, Result};

use crate::shell;
use crate::step::{present, step};
use crate::workspace;

/// A binary and the location of its source.
struct Binary {
    name: &'static str,
    module: Module,
    package: &'static str,
    expected: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Module {
    Etcd,
    Kubernetes,
}

const BINARIES: [Binary; 5] = [
    Binary {
        name: "etcd",
        module: Module::Etcd,
        package: "go.etcd.io/etcd/server/v3",
        expected: "40 s",
    },
    Binary {
        name: "kube-apiserver",
        module: Module::Kubernetes,
        package: "k8s.io/kubernetes/cmd/kube-apiserver",
        expected: "3 to 8 min",
    },
    Binary {
        name: "kube-controller-manager",
        module: Module::Kubernetes,
        package: "k8s.io/kubernetes/cmd/kube-controller-manager",
        expected: "50 s",
    },
    Binary {
        name: "kube-proxy",
        module: Module::Kubernetes,
        package: "k8s.io/kubernetes/cmd/kube-proxy",
        expected: "10 s",
    },
    Binary {
        name: "kubectl",
        module: Module::Kubernetes,
        package: "k8s.io/kubernetes/cmd/kubectl",
        expected: "25 s",
    },
];

/// The files that determine the built programs.
const INPUTS: [&str; 4] = ["go.mod", "go.sum", "etcd/go.mod", "etcd/go.sum"];

/// Builds the binaries that are neither in the cache nor in `KUBEBUILDER_ASSETS`.
pub(crate) fn ensure() -> Result<()> {
    let source = workspace::root().join("tests/control-plane");
    let directory = workspace::cache()?.join("control-plane").join(fingerprint(&source)?);
    fs::create_dir_all(&directory).with_context(|| format!("directory {}", directory.display()))?;
    link(&source.join("bin"), &directory)?;
    let missing: Vec<&Binary> = BINARIES
        .iter()
        .filter(|binary| !given(binary.name) && !directory.join(binary.name).is_file())
        .collect();
    if missing.is_empty() {
        present(format!("control plane in {}", directory.display()));
        return Ok(());
    }
    if shell::find("go").is_none() {
        anyhow::bail!(
            "go is not in PATH: the test control plane is built with it\n\
             remedy: install Go 1.21 or newer (it fetches the one that Kubernetes asks for), or set KUBEBUILDER_ASSETS to a directory with the binaries"
        );
    }
    for binary in missing {
        step(format!("{} from Go modules", binary.name), binary.expected, || {
            build(binary, &source, &directory)
        })?;
    }
    Ok(())
}

/// Whether `KUBEBUILDER_ASSETS` has this binary.
fn given(name: &str) -> bool {
    env::var_os("KUBEBUILDER_ASSETS")
        .is_some_and(|directory| Path::new(&directory).join(name).is_file())
}

fn build(binary: &Binary, source: &Path, directory: &Path) -> Result<()> {
    let module = match binary.module {
        Module::Etcd => source.join("etcd"),
        Module::Kubernetes => source.to_path_buf(),
    };
    let mut link_flags = String::from("-s -w");
    if binary.module == Module::Kubernetes {
        link_flags.push_str(&version_stamp(&module)?);
    }
    let unfinished = directory.join(format!("{}.{}", binary.name, process::id()));
    shell::run(
        go(&module)
            .args([
                "build",
                "-mod=readonly",
                "-buildvcs=false",
                "-trimpath",
                "-ldflags",
                &link_flags,
                "-o",
            ])
            .arg(&unfinished)
            .arg(binary.package),
        "check that Go reaches its module proxy, and that 3 GB of memory and 5 GB of disk are free",
    )?;
    // The binary is renamed at the end, so that an interrupted build leaves no binary that a later run would trust.
    fs::rename(&unfinished, directory.join(binary.name))
        .with_context(|| format!("binary {} in {}", binary.name, directory.display()))
}

/// Returns the linker flags that set the version of the binaries; a build from a module would report v0.0.0.
fn version_stamp(module: &Path) -> Result<String> {
    let version = shell::output(
        go(module).args(["list", "-mod=readonly", "-m", "-f", "{{.Version}}", "k8s.io/kubernetes"]),
        "check tests/control-plane/go.mod",
    )?;
    let version = version.trim();
    let mut parts = version.trim_start_matches('v').split('.');
    let (major, minor) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    Ok(["k8s.io/component-base/version", "k8s.io/client-go/pkg/version"]
        .map(|package| {
            format!(
                " -X {package}.gitVersion={version} \
                 -X {package}.gitMajor={major} -X {package}.gitMinor={minor}"
            )
        })
        .concat())
}

fn go(module: &Path) -> Command {
    let mut go = Command::new("go");
    go.current_dir(module).env("GOWORK", "off").env("GOFLAGS", "");
    go
}

/// A name for the inputs: the FNV-1a hash of their bytes, in sixteen digits.
fn fingerprint(source: &Path) -> Result<String> {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for input in INPUTS {
        let file = source.join(input);
        let bytes = fs::read(&file).with_context(|| format!("file {}", file.display()))?;
        for byte in bytes {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    Ok(format!("{hash:016x}"))
}

/// Makes `link` point at `directory`, whatever it pointed at before.
fn link(link: &PathBuf, directory: &Path) -> Result<()> {
    if fs::read_link(link).is_ok_and(|target| target == directory) {
        return Ok(());
    }
    match fs::remove_file(link) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("link {}", link.display()));
        }
        _ => {}
    }
    symlink(directory, link).with_context(|| format!("link {}", link.display()))
}
