//! The site of a control plane: its namespace, its directory, and the command lines of its servers.

use std::fs::{self, File};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use tempfile::TempDir;

use super::Options;
use super::binaries::binary;
use super::directory;
use crate::netns::NAMES;
use crate::process::{Home, Program};

/// The token of the one user, who has all rights.
const TOKEN: &str = "lb-tests";

/// The controllers that Services depend on. Others would interfere: node-lifecycle considers a node without a kubelet
/// dead after 50 s, and pod garbage collection then deletes its pods.
const CONTROLLERS: &str = "endpointslice-controller,endpointslice-mirroring-controller,\
     endpoints-controller,garbage-collector-controller,namespace-controller,service-cidr-controller";

/// Opens a network namespace by name, or that of the caller, as a home for processes.
///
/// # Errors
///
/// If no namespace has this name.
pub fn home(netns: Option<&str>) -> Result<Home> {
    let path = netns.map_or_else(
        || PathBuf::from("/proc/thread-self/ns/net"),
        |name| Path::new(NAMES).join(name),
    );
    let namespace = File::open(&path).with_context(|| format!("namespace {}", path.display()))?;
    Ok(Home::new(Arc::new(namespace), None, false))
}

/// The namespace, the directory and the options of one control plane.
#[derive(Debug)]
pub(crate) struct Site {
    pub(crate) home: Home,
    pub(crate) options: Options,
    directory: TempDir,
}

impl Site {
    /// Prepares a directory with credentials for the servers and their clients.
    pub(crate) fn new(options: Options) -> Result<Self> {
        let home = home(options.netns.as_deref())?;
        let site = Self { home, options, directory: directory::create("control-plane")? };
        site.write("tokens.csv", &format!("{TOKEN},lb-tests,1,\"system:masters\"\n"))?;
        site.write_kubeconfig("kubeconfig.yaml", TOKEN)?;
        Ok(site)
    }

    /// Returns the path of a file of this control plane.
    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.directory.path().join(file)
    }

    /// Starts etcd.
    pub(crate) fn etcd(&self) -> Result<Program> {
        let client = self.etcd_address();
        let peer = format!("http://127.0.0.1:{}", self.options.port + 2);
        let flags = [
            ("data-dir", self.text("etcd")),
            ("unsafe-no-fsync", "true".to_owned()),
            ("listen-client-urls", client.clone()),
            ("advertise-client-urls", client),
            ("listen-peer-urls", peer.clone()),
            ("initial-cluster", format!("default={peer}")),
            ("initial-advertise-peer-urls", peer),
        ];
        self.spawn("etcd", flags, &[])
    }

    /// Starts the API server.
    pub(crate) fn api_server(&self) -> Result<Program> {
        let options = &self.options;
        // The server creates this key together with its own certificate; using it to sign tokens saves creating another
        // key.
        let key = self.text("certificates/apiserver.key");
        let flags = [
            ("etcd-servers", self.etcd_address()),
            ("cert-dir", self.text("certificates")),
            ("bind-address", options.address.to_string()),
            ("advertise-address", options.address.to_string()),
            ("secure-port", options.port.to_string()),
            ("service-cluster-ip-range", options.service_cidrs.clone()),
            ("service-account-issuer", "https://kubernetes.default.svc".to_owned()),
            ("service-account-key-file", key.clone()),
            ("service-account-signing-key-file", key),
            ("token-auth-file", self.text("tokens.csv")),
            ("authorization-mode", "RBAC".to_owned()),
            ("disable-admission-plugins", "ServiceAccount".to_owned()),
            ("allow-privileged", "true".to_owned()),
        ];
        self.spawn("kube-apiserver", flags, &options.api_server_flags)
    }

    /// Starts the controller manager.
    pub(crate) fn controller_manager(&self) -> Result<Program> {
        let flags = [
            ("kubeconfig", self.text("kubeconfig.yaml")),
            ("controllers", CONTROLLERS.to_owned()),
            ("leader-elect", "false".to_owned()),
            ("secure-port", "0".to_owned()),
        ];
        self.spawn("kube-controller-manager", flags, &self.options.controller_manager_flags)
    }

    fn spawn<const N: usize>(
        &self,
        name: &str,
        flags: [(&str, String); N],
        more: &[String],
    ) -> Result<Program> {
        let mut command = self.home.command(&binary(name)?)?;
        for (flag, value) in flags {
            command.arg(format!("--{flag}={value}"));
        }
        command.args(more);
        Program::spawn(name, command, &self.path(&format!("{name}.log")))
    }

    /// Returns the address of etcd.
    pub(crate) const fn store(&self) -> SocketAddr {
        SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), self.options.port + 1)
    }

    fn etcd_address(&self) -> String {
        format!("http://{}", self.store())
    }

    /// Writes a kubeconfig with a token as its credential.
    pub(crate) fn write_kubeconfig(&self, file: &str, token: &str) -> Result<()> {
        let server = SocketAddr::new(self.options.address, self.options.port);
        // This file contains the certificate of the server, followed by that of the authority that signed it.
        let authority = self.text("certificates/apiserver.crt");
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: test\n\
             clusters:\n- name: test\n  cluster:\n    server: https://{server}\n    \
             certificate-authority: {authority}\n\
             users:\n- name: test\n  user:\n    token: {token}\n\
             contexts:\n- name: test\n  context:\n    cluster: test\n    user: test\n"
        );
        self.write(file, &text)
    }

    /// Returns the certificates of the server and of the authority that signed it.
    pub(crate) fn authority(&self) -> Result<String> {
        let file = self.path("certificates/apiserver.crt");
        fs::read_to_string(&file).with_context(|| format!("file {}", file.display()))
    }

    fn text(&self, file: &str) -> String {
        self.path(file).display().to_string()
    }

    fn write(&self, file: &str, text: &str) -> Result<()> {
        let path = self.path(file);
        fs::write(&path, text).with_context(|| format!("file {}", path.display()))
    }
}
