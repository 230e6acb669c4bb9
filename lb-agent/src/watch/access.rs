//! Reads how to reach the API server and authenticate: address, credentials, proxy, and the files with these.

use std::path::{Path, PathBuf};
use std::{env, fs};

use axum::http::Uri;
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use kube::Config;
use kube::config::{Cluster, ExecInteractiveMode, KubeConfigOptions, Kubeconfig, KubeconfigError};
use secrecy::SecretString;

use super::secrets::{place, without_user};
use super::server::{ClientError, Server};

/// The directory in which a pod finds its credentials for the API server.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// The address, credentials and proxy for the API server, as the files give them now.
///
/// It has no `Debug`, which would show secrets.
pub(super) struct Access {
    /// The configuration of the client. Its token has been read already; its proxy is not used.
    pub(super) config: Config,
    /// The files that were read.
    pub(super) files: Vec<PathBuf>,
    /// The proxy to use.
    pub(super) proxy: Option<Intercept>,
    /// A credential plugin is in use, which may fail now and succeed later.
    pub(super) has_plugin: bool,
}

impl Server {
    /// Reads address, credentials and proxy.
    pub(super) async fn access(&self) -> Result<Access, ClientError> {
        let master = self.master.as_deref().map(master).transpose()?;
        let (mut config, mut files, proxy) = match &self.kubeconfig {
            Some(file) => from_file(file).await?,
            None => in_pod(master.is_some())?,
        };
        if let Some(master) = master {
            config.cluster_url = master;
        }
        // The library would read the file again by itself, so it is taken out of the configuration: here a change of
        // any file rebuilds the client (`Keeper`).
        if let Some(file) = config.auth_info.token_file.take().map(PathBuf::from) {
            match fs::read_to_string(&file) {
                // As in client-go, the file takes precedence over a token in the kubeconfig. Editors and `echo` end a
                // file with a newline, which is not valid in a header.
                Ok(text) if !text.trim().is_empty() || config.auth_info.token.is_none() => {
                    config.auth_info.token = Some(SecretString::from(text.trim()));
                }
                // A file is empty while it is being written: until then the token of the kubeconfig counts, as in
                // client-go (`bearerAuthRoundTripper` in its package `transport`).
                Ok(_) => {}
                Err(_) if config.auth_info.token.is_some() => {}
                Err(source) => return Err(ClientError::Token { file, source }),
            }
            files.push(file);
        }
        // The proxy is determined last, because `NO_PROXY` is compared with the address in use.
        let proxy = match proxy {
            Some(proxy) => Some(explicit(&proxy, &config.cluster_url)?),
            None => of_environment(&config.cluster_url),
        };
        // An `auth-provider` of an old kubeconfig may run a command as well (its `cmd-path`).
        let has_plugin =
            config.auth_info.exec.is_some() || config.auth_info.auth_provider.is_some();
        Ok(Access { config, files, proxy, has_plugin })
    }
}

type Read = (Config, Vec<PathBuf>, Option<String>);

async fn from_file(file: &Path) -> Result<Read, ClientError> {
    let wrong = |source| {
        let file = file.to_owned();
        if let KubeconfigError::Parse(error) = &source {
            return ClientError::Syntax { file, place: place(error) };
        }
        ClientError::Kubeconfig { file, source: Box::new(source) }
    };
    let mut kubeconfig = Kubeconfig::read_from(file).map_err(wrong)?;
    let context = kubeconfig.current_context.clone().unwrap_or_default();
    let named = kubeconfig.contexts.iter().find(|named| named.name == context);
    let Some(named) = named.filter(|_| !context.is_empty()) else {
        let known = kubeconfig.contexts.iter().map(|named| named.name.clone()).collect();
        return Err(ClientError::NoContext { file: file.to_owned(), context, known });
    };
    let context = named.context.clone().unwrap_or_default();
    // All files that the kubeconfig names are recorded, since the client is rebuilt when one of them changes. The
    // library reads them but does not report their names.
    let mut files = vec![file.to_owned()];
    let mut clusters = kubeconfig.clusters.iter_mut();
    let cluster = clusters.find(|named| named.name == context.cluster);
    let cluster = cluster.and_then(|named| named.cluster.as_mut());
    let users =
        kubeconfig.auth_infos.iter().filter(|user| Some(&user.name) == context.user.as_ref());
    // The library uses the first user of that name, too.
    for user in users.filter_map(|named| named.auth_info.as_ref()).take(1) {
        files.extend(user.client_certificate.as_ref().map(PathBuf::from));
        files.extend(user.client_key.as_ref().map(PathBuf::from));
    }
    let of_cluster = |cluster: &mut Cluster| {
        files.extend(cluster.certificate_authority.as_ref().map(PathBuf::from));
        cluster.proxy_url.take().filter(|proxy| !proxy.is_empty())
    };
    let proxy = cluster.and_then(of_cluster);
    let options = KubeConfigOptions::default();
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(wrong)?;
    if let Some(plugin) = &mut config.auth_info.exec {
        // No user answers a plugin here, and what it writes to standard error would be in the agent's log.
        plugin.interactive_mode = Some(ExecInteractiveMode::Never);
    }
    Ok((config, files, proxy))
}

fn in_pod(address_known: bool) -> Result<Read, ClientError> {
    // With `--master` the address of the environment is not used, and must not be an error if it is missing.
    let config = if address_known { Config::incluster_dns() } else { Config::incluster_env() };
    let mut config = config.map_err(|source| ClientError::NotInPod(Box::new(source)))?;
    // The file is read here together with the token.
    let authority = config.root_cert_file.take();
    let authority = authority.unwrap_or_else(|| Path::new(SERVICE_ACCOUNT).join("ca.crt"));
    Ok((config, vec![authority], None))
}

fn master(text: &str) -> Result<Uri, ClientError> {
    let wrong = |source| ClientError::Master { text: without_user(text), source };
    let uri: Uri = text.parse().map_err(wrong)?;
    // `10.0.0.1:6443` is a valid URI too, but without a scheme no request could be sent to it.
    let complete = matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some();
    if complete { Ok(uri) } else { Err(ClientError::MasterParts(without_user(text))) }
}

/// Returns the proxy of a kubeconfig. It is meant for this cluster, so it takes precedence over the environment.
fn explicit(proxy: &str, server: &Uri) -> Result<Intercept, ClientError> {
    let matcher = Matcher::builder().all(proxy.to_owned()).build();
    matcher.intercept(server).ok_or_else(|| ClientError::Proxy(without_user(proxy)))
}

/// Returns the proxy that the environment names, as Go's clients read it: none for this host itself.
fn of_environment(server: &Uri) -> Option<Intercept> {
    let variable = |upper: &str| {
        // An empty variable does not hide the one in lower case (`getEnvAny` in golang.org/x/net/http/httpproxy).
        let value = env::var(upper).ok().filter(|value| !value.is_empty());
        value.or_else(|| env::var(upper.to_lowercase()).ok()).unwrap_or_default()
    };
    through(server, [variable("HTTPS_PROXY"), variable("HTTP_PROXY"), variable("NO_PROXY")])
}

fn through(server: &Uri, [https, http, no]: [String; 3]) -> Option<Intercept> {
    let host = server.host().unwrap_or_default().trim_matches(['[', ']']);
    let is_local =
        host.parse().map_or(host == "localhost", |ip: std::net::IpAddr| ip.is_loopback());
    if is_local || no.split(',').any(|part| part.trim() == "*") {
        return None;
    }
    // The default port of the scheme, as an entry of `NO_PROXY` may name it although the address does not.
    let usual = if server.scheme_str() == Some("http") { 80 } else { 443 };
    let no = for_port(&no, server.port_u16().unwrap_or(usual));
    Matcher::builder().https(https).http(http).no(no).build().intercept(server)
}

/// Returns `NO_PROXY` for a server with this port.
///
/// An entry may name a port (`10.0.0.1:6443`), which the library does not know.
fn for_port(no: &str, port: u16) -> String {
    let hosts = no.split(',').filter_map(|part| {
        let part = part.trim();
        let Some((host, named)) = part.rsplit_once(':') else { return Some(part) };
        // The colons of an IPv6 address without brackets separate no port.
        let is_bare_v6 = host.contains(':') && !host.ends_with(']');
        match named.parse::<u16>() {
            Ok(named) if !is_bare_v6 => (named == port).then(|| host.trim_matches(['[', ']'])),
            _ => Some(part),
        }
    });
    hosts.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by(server: &str, no: &str) -> Option<String> {
        let server = server.parse().expect("an address");
        let variables =
            ["http://proxy:3128", "socks5://user:word@socks:1080", no].map(str::to_owned);
        through(&server, variables).map(|proxy| proxy.uri().to_string())
    }

    #[test]
    fn the_environment_is_read_as_by_go() {
        assert_eq!(by("https://10.0.0.1:6443", "").as_deref(), Some("http://proxy:3128/"));
        assert_eq!(by("http://10.0.0.1:8080", "").as_deref(), Some("socks5://socks:1080/"));
        for no in ["10.0.0.0/8", "10.0.0.1", "*", "other, 10.0.0.1"] {
            assert_eq!(by("https://10.0.0.1:6443", no), None, "{no}");
        }
        assert_eq!(by("https://api.test:6443", ".test"), None);
        for no in ["10.0.0.1:6443", "other:1, 10.0.0.1:6443"] {
            assert_eq!(by("https://10.0.0.1:6443", no), None, "{no}");
        }
        assert!(by("https://10.0.0.1:6443", "10.0.0.1:443").is_some());
        for no in ["[fd00::1]:6443", "fd00::1"] {
            assert_eq!(by("https://[fd00::1]:6443", no), None, "{no}");
        }
        for here in ["https://127.0.0.1:6443", "https://[::1]:6443", "https://localhost"] {
            assert_eq!(by(here, ""), None, "{here}");
        }
    }

    #[test]
    fn proxy_of_a_kubeconfig_applies_to_a_loopback_server() {
        let here = "https://127.0.0.1:6443".parse().expect("an address");
        assert_eq!(explicit("http://proxy:1", &here).expect("a proxy").uri(), "http://proxy:1/");
        let error = explicit("gopher://proxy:1", &here).expect_err("no proxy").to_string();
        assert!(error.contains("gopher://proxy:1"), "{error}");
        let error = explicit("gopher://user:word@proxy:1", &here).expect_err("no proxy");
        assert!(!error.to_string().contains("word"), "{error}");
    }
}
