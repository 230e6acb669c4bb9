//! A real Kubernetes control plane for one test: etcd, kube-apiserver and kube-controller-manager.
//!
//! It has its own network namespace and directory, and answers within seconds. It ends with its value or with the test
//! process, whichever comes first. There are no kubelets: the test writes Node and Pod objects, and the real
//! controllers act on them.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use nix::sys::signal::Signal;

mod account;
pub mod binaries;
mod directory;
pub mod kube_proxy;
pub mod kubectl;
mod objects;
mod site;

pub use account::ServiceAccount;
pub(crate) use account::{CLAIM, DIRECTORY as SERVICE_ACCOUNT};
use kubectl::Kubectl;
pub use objects::{Node, Pod};
use site::Site;
pub use site::home;

use crate::process::{Home, Program, run};
use crate::wait::{try_wait_until, wait_until_ok};

/// The deadline for a start: 3 s alone, many times that beside a compiler on two cores.
const START: Duration = Duration::from_mins(3);
/// The deadline for a TCP connection to a server that listens.
const KNOCK: Duration = Duration::from_secs(1);

/// The parameters of a control plane.
#[derive(Debug, Clone)]
pub struct Options {
    /// The name of the network namespace; `None` for that of the caller. Its loopback interface must be up.
    pub netns: Option<String>,
    /// The address that the API server listens on: an address of the namespace, of the primary family. Not a loopback
    /// address if programs of other namespaces need a route to it.
    pub address: IpAddr,
    /// The port of the API server; etcd uses the two ports above it on 127.0.0.1.
    pub port: u16,
    /// The `ClusterIP` ranges; the first one is of the primary family.
    pub service_cidrs: String,
    /// More flags for kube-apiserver; a later flag overrides an earlier one.
    pub api_server_flags: Vec<String>,
    /// More flags for kube-controller-manager; a later flag overrides an earlier one.
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

/// A running control plane; dropping it ends its processes and removes its directory.
#[derive(Debug)]
pub struct ControlPlane {
    // Dropped in this order: clients before servers, the directory last.
    controller_manager: Program,
    api_server: Option<Program>,
    etcd: Program,
    kubectl: Kubectl,
    site: Site,
}

impl ControlPlane {
    /// Starts a control plane, and returns when it accepts objects.
    pub fn start(options: Options) -> Result<Self> {
        let site = Site::new(options)?;
        let kubectl =
            Kubectl::new(site.home.clone(), &site.path("kubeconfig.yaml"), &site.path(""));
        let mut etcd = site.etcd()?;
        let api_server = start_api_server(&site, &kubectl, &mut etcd)?;
        let controller_manager = site.controller_manager()?;
        Ok(Self { controller_manager, api_server: Some(api_server), etcd, kubectl, site })
    }

    /// Returns the kubeconfig of a user with all rights; it works in any namespace with a route to the API server's
    /// address.
    pub fn kubeconfig(&self) -> PathBuf {
        self.site.path("kubeconfig.yaml")
    }

    /// Returns the credentials of a service account, in the form in which its pods find them.
    pub fn service_account(&self, namespace: &str, name: &str) -> Result<ServiceAccount> {
        let token = self.kubectl(&["create", "token", name, "-n", namespace])?;
        let authority = self.site.authority()?;
        let files = [("token", token.trim()), ("ca.crt", &authority), ("namespace", namespace)];
        ServiceAccount::new(&self.site.path(&format!("account-{name}")), self.address(), files)
    }

    /// Returns the environment variables by which the kubelet tells every pod the API server's `ClusterIP` and port.
    pub fn environment_of_pods(&self) -> Result<[(String, String); 2]> {
        let address = ["get", "service", "kubernetes", "-o", "jsonpath={.spec.clusterIP}"];
        let port = ["get", "service", "kubernetes", "-o", "jsonpath={.spec.ports[0].port}"];
        Ok([
            ("KUBERNETES_SERVICE_HOST".into(), self.kubectl(&address)?),
            ("KUBERNETES_SERVICE_PORT".into(), self.kubectl(&port)?),
        ])
    }

    /// Returns the address and port of the API server.
    pub const fn address(&self) -> SocketAddr {
        SocketAddr::new(self.site.options.address, self.site.options.port)
    }

    /// Returns the address and port of etcd, in the control plane's namespace.
    pub(crate) const fn store(&self) -> SocketAddr {
        self.site.store()
    }

    /// Returns the home of the control plane's processes.
    pub const fn home(&self) -> &Home {
        &self.site.home
    }

    /// Stops its processes (SIGSTOP): a measurement has the machine for itself, and clients wait.
    ///
    /// # Errors
    ///
    /// If one of the processes has ended.
    pub fn pause(&self) -> Result<()> {
        self.signal(Signal::SIGSTOP)
    }

    /// Continues its processes (SIGCONT).
    ///
    /// # Errors
    ///
    /// If one of the processes has ended.
    pub fn resume(&self) -> Result<()> {
        self.signal(Signal::SIGCONT)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let servers = [&self.etcd, &self.controller_manager];
        servers.into_iter().chain(&self.api_server).try_for_each(|server| server.signal(signal))
    }

    /// Returns the kubectl client of this control plane.
    pub const fn client(&self) -> &Kubectl {
        &self.kubectl
    }

    /// Runs kubectl and returns its output.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        self.kubectl.run(arguments)
    }

    /// Creates or changes the objects of `manifests`: any number of YAML or JSON documents.
    pub fn apply(&self, manifests: &str) -> Result<()> {
        self.kubectl.apply(manifests)
    }

    /// Validates `manifests` with a server-side dry run: by the schemas, without unknown or duplicate fields, through
    /// admission and authorisation; no object is stored.
    pub fn check(&self, manifests: &str) -> Result<String> {
        self.kubectl.check(manifests)
    }

    /// Kills the API server as a crash would; the other processes stay and wait for it.
    pub fn stop_api_server(&mut self) {
        drop(self.api_server.take());
    }

    /// Kills the API server if it runs, starts it, and returns when it accepts objects again.
    pub fn restart_api_server(&mut self) -> Result<()> {
        self.stop_api_server();
        self.api_server = Some(start_api_server(&self.site, &self.kubectl, &mut self.etcd)?);
        Ok(())
    }
}

/// Snapshots of the store.
impl ControlPlane {
    /// Makes a snapshot of the store; the servers are stopped meanwhile.
    pub fn save_store(&mut self) -> Result<()> {
        self.without_store(|site| copy(&site.path("etcd"), &site.path("etcd.saved")))
    }

    /// Restores the last snapshot, as an operator restores a snapshot of etcd.
    pub fn restore_store(&mut self) -> Result<()> {
        self.without_store(|site| copy(&site.path("etcd.saved"), &site.path("etcd")))
    }

    fn without_store(&mut self, work: impl FnOnce(&Site) -> Result<()>) -> Result<()> {
        self.stop_api_server();
        let _status = self.etcd.terminate()?;
        work(&self.site)?;
        self.etcd = self.site.etcd()?;
        self.restart_api_server()
    }
}

/// Replaces a directory by a copy of another.
fn copy(from: &Path, to: &Path) -> Result<()> {
    if to.exists() {
        fs::remove_dir_all(to)?;
    }
    drop(run(Command::new("cp").arg("-a").arg(from).arg(to), "")?);
    Ok(())
}

fn start_api_server(site: &Site, kubectl: &Kubectl, etcd: &mut Program) -> Result<Program> {
    let mut api_server = site.api_server()?;
    try_wait_until(START, "API server /readyz", || {
        etcd.ensure_running()?;
        api_server.ensure_running()?;
        // kubectl uses much CPU time, which the server needs for its start, so it runs only once the port is open.
        let is_ready = listens(site)? && kubectl.run(&["get", "--raw", "/readyz"]).is_ok();
        Ok(is_ready.then_some(()))
    })?;
    // The server creates this object itself, once namespaces and address allocation work.
    wait_until_ok(START, "service default/kubernetes", || {
        kubectl.run(&["get", "service", "kubernetes"]).map(drop)
    })?;
    Ok(api_server)
}

fn listens(site: &Site) -> Result<bool> {
    let server = SocketAddr::new(site.options.address, site.options.port);
    site.home.run_in(|| TcpStream::connect_timeout(&server, KNOCK).is_ok())
}
