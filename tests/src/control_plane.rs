//! A real Kubernetes control plane of one's own: etcd, kube-apiserver and kube-controller-manager.
//!
//! It lives in a network namespace and a folder of its own, answers within seconds, and is gone with
//! the value, or with the thread that started it, whichever ends first. There are no kubelets: Node
//! and Pod objects say what the test wants them to say, and the real controllers draw conclusions.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tempfile::TempDir;

pub mod binaries;
mod folder;
pub mod kube_proxy;
pub mod kubectl;
mod objects;
pub mod process;

use binaries::binary;
use kubectl::Kubectl;
pub use objects::{Node, Pod};
use process::Process;

use crate::wait::{try_wait_until, wait_until_ok};

/// What a start may take: 5 s alone, several times that beside a compiler on two cores.
const START: Duration = Duration::from_secs(90);

/// The controllers that Services depend on. The rest would only be in the way: node-lifecycle takes a
/// node without a kubelet for dead after 50 s, pod garbage collection then deletes its pods.
const CONTROLLERS: &str = "endpointslice-controller,endpointslice-mirroring-controller,\
     endpoints-controller,garbage-collector-controller,namespace-controller,service-cidr-controller";

/// The token of the one user, who may do everything.
const TOKEN: &str = "lb-tests";

/// Where and how a control plane runs.
#[derive(Debug, Clone)]
pub struct Options {
    /// Network namespace by name; without one, that of the caller. Its loopback device must be up.
    pub netns: Option<String>,
    /// Address that the API server listens on; it must exist in the namespace.
    pub address: IpAddr,
    /// Port of the API server; etcd takes the two above it on 127.0.0.1.
    pub port: u16,
    /// `ClusterIP` ranges, the first of them of the primary family.
    pub service_cidrs: String,
    /// More flags for kube-apiserver.
    pub api_server_flags: Vec<String>,
    /// More flags for kube-controller-manager; a later flag wins over ours.
    pub controller_manager_flags: Vec<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            netns: None,
            address: Ipv4Addr::LOCALHOST.into(),
            port: 6443,
            service_cidrs: "10.96.0.0/16,fd00:10:96::/112".to_owned(),
            api_server_flags: Vec::new(),
            controller_manager_flags: Vec::new(),
        }
    }
}

/// A running control plane; dropping it ends its processes and removes its folder.
#[derive(Debug)]
pub struct ControlPlane {
    // Dropped in this order: clients before servers, the folder last.
    controller_manager: Option<Process>,
    api_server: Option<Process>,
    etcd: Process,
    kubectl: Kubectl,
    options: Options,
    folder: TempDir,
}

impl ControlPlane {
    /// Starts a control plane and returns when it can take objects.
    pub fn start(options: Options) -> Result<Self> {
        let folder = folder::create()?;
        let kubeconfig = write_credentials(folder.path(), &options)?;
        let mut control_plane = Self {
            controller_manager: None,
            api_server: None,
            etcd: start_etcd(folder.path(), &options)?,
            kubectl: Kubectl::new(options.netns.as_deref(), &kubeconfig, folder.path()),
            options,
            folder,
        };
        control_plane.restart_api_server()?;
        control_plane.start_controller_manager()?;
        Ok(control_plane)
    }

    /// Returns the kubeconfig of a user who may do everything; valid in any namespace that has a
    /// route to the API server's address.
    pub fn kubeconfig(&self) -> PathBuf {
        self.kubectl.kubeconfig().to_path_buf()
    }

    /// Returns the address and port of the API server.
    pub const fn address(&self) -> SocketAddr {
        SocketAddr::new(self.options.address, self.options.port)
    }

    /// Returns the client of this control plane.
    pub const fn client(&self) -> &Kubectl {
        &self.kubectl
    }

    /// Runs kubectl and returns what it printed.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        self.kubectl.run(arguments)
    }

    /// Creates or changes the objects of `manifests`: any number of YAML or JSON documents.
    pub fn apply(&self, manifests: &str) -> Result<()> {
        self.kubectl.apply(manifests)
    }

    /// Kills the API server as a crash would; the others stay and wait for it.
    pub fn stop_api_server(&mut self) {
        drop(self.api_server.take());
    }

    /// Kills the API server if it runs, starts it, and returns when it can take objects again.
    pub fn restart_api_server(&mut self) -> Result<()> {
        self.stop_api_server();
        let mut api_server = self.spawn_api_server()?;
        let (kubectl, etcd) = (&self.kubectl, &mut self.etcd);
        try_wait_until(START, "API server /readyz", || {
            etcd.ensure_running()?;
            api_server.ensure_running()?;
            Ok(kubectl.run(&["get", "--raw", "/readyz"]).ok().map(drop))
        })?;
        self.api_server = Some(api_server);
        // It makes this object itself, when namespaces and address allocation work.
        wait_until_ok(START, "service default/kubernetes", || {
            self.kubectl(&["get", "service", "kubernetes"])
        })
        .map(drop)
    }

    fn spawn_api_server(&self) -> Result<Process> {
        let (folder, options) = (self.folder.path(), &self.options);
        let certificates = folder.join("certificates");
        // The server makes this key with its own certificate; signing tokens with it spares another.
        let key = certificates.join("apiserver.key").display().to_string();
        let mut command = process::command(options.netns.as_deref(), &binary("kube-apiserver")?);
        let _: &mut Command = command
            .arg(format!(
                "--etcd-servers=http://127.0.0.1:{}",
                options.port + 1
            ))
            .arg(format!("--cert-dir={}", certificates.display()))
            .arg(format!("--bind-address={}", options.address))
            .arg(format!("--advertise-address={}", options.address))
            .arg(format!("--secure-port={}", options.port))
            .arg(format!(
                "--service-cluster-ip-range={}",
                options.service_cidrs
            ))
            .arg("--service-account-issuer=https://kubernetes.default.svc")
            .arg(format!("--service-account-key-file={key}"))
            .arg(format!("--service-account-signing-key-file={key}"))
            .arg(format!(
                "--token-auth-file={}",
                folder.join("tokens.csv").display()
            ))
            .arg("--authorization-mode=RBAC")
            .arg("--disable-admission-plugins=ServiceAccount")
            .arg("--allow-privileged")
            .args(&options.api_server_flags);
        Process::spawn(
            "kube-apiserver",
            command,
            &folder.join("kube-apiserver.log"),
        )
    }

    fn start_controller_manager(&mut self) -> Result<()> {
        let (folder, options) = (self.folder.path(), &self.options);
        let program = binary("kube-controller-manager")?;
        let mut command = process::command(options.netns.as_deref(), &program);
        let _: &mut Command = command
            .arg(format!(
                "--kubeconfig={}",
                self.kubectl.kubeconfig().display()
            ))
            .arg(format!("--controllers={CONTROLLERS}"))
            .arg("--leader-elect=false")
            .arg("--secure-port=0")
            .args(&options.controller_manager_flags);
        let log = folder.join("kube-controller-manager.log");
        self.controller_manager = Some(Process::spawn("kube-controller-manager", command, &log)?);
        Ok(())
    }
}

fn start_etcd(folder: &Path, options: &Options) -> Result<Process> {
    let client = format!("http://127.0.0.1:{}", options.port + 1);
    let peer = format!("http://127.0.0.1:{}", options.port + 2);
    let mut command = process::command(options.netns.as_deref(), &binary("etcd")?);
    let _: &mut Command = command
        .arg(format!("--data-dir={}", folder.join("etcd").display()))
        .arg("--unsafe-no-fsync")
        .arg(format!("--listen-client-urls={client}"))
        .arg(format!("--advertise-client-urls={client}"))
        .arg(format!("--listen-peer-urls={peer}"))
        .arg(format!("--initial-advertise-peer-urls={peer}"))
        .arg(format!("--initial-cluster=default={peer}"));
    Process::spawn("etcd", command, &folder.join("etcd.log"))
}

/// Writes the token for the server and the kubeconfig for its clients; returns the latter.
fn write_credentials(folder: &Path, options: &Options) -> Result<PathBuf> {
    let tokens = folder.join("tokens.csv");
    fs::write(&tokens, format!("{TOKEN},lb-tests,1,\"system:masters\"\n"))
        .with_context(|| format!("token file {}", tokens.display()))?;
    let kubeconfig = folder.join("kubeconfig.yaml");
    let server = SocketAddr::new(options.address, options.port);
    // The certificate of the server is followed by the authority that signed it, in one file.
    let authority = folder.join("certificates/apiserver.crt");
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: test\n\
         clusters:\n- name: test\n  cluster:\n    server: https://{server}\n    \
         certificate-authority: {}\n\
         users:\n- name: test\n  user:\n    token: {TOKEN}\n\
         contexts:\n- name: test\n  context:\n    cluster: test\n    user: test\n",
        authority.display()
    );
    fs::write(&kubeconfig, text).with_context(|| format!("kubeconfig {}", kubeconfig.display()))?;
    Ok(kubeconfig)
}
