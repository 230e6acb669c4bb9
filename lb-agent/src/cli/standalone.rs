//! `lb-agent serve` and `lb-agent kubeconfig`: the control plane without Kubernetes.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use ipnet::IpNet;
use lb_control::service::PortRange;

use crate::config::LogFormat;

/// `lb-agent serve`
#[derive(Debug, Args)]
pub struct Serve {
    /// Directory for the store, the certificates and admin.kubeconfig.
    #[arg(long, value_name = "DIR")]
    pub data: PathBuf,
    /// Address and port to listen on, by TLS.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:6443")]
    pub listen: SocketAddr,
    /// Ranges of cluster addresses: one, or one of each family. Services get the first family by default.
    #[arg(long, value_name = "PREFIX,..", value_delimiter = ',', default_values = ["10.96.0.0/16", "fd00:10:96::/112"])]
    pub service_cidr: Vec<IpNet>,
    /// Range of node ports and health check ports.
    #[arg(long, value_name = "FIRST-LAST", default_value = "30000-32767")]
    pub node_port_range: PortRange,
    /// Log format.
    #[arg(long, value_enum, default_value_t)]
    pub log_format: LogFormat,
    /// Log verbosity: 0 to 2 info, 3 and 4 debug, 5 and more trace.
    #[arg(short = 'v', value_name = "LEVEL", default_value_t = 0)]
    pub verbosity: u8,
}

/// `lb-agent kubeconfig`
#[derive(Debug, Args)]
pub struct KubeconfigVerb {
    /// Directory of the control plane.
    #[arg(long, value_name = "DIR")]
    pub data: PathBuf,
    /// Role that the kubeconfig is for.
    #[command(flatten)]
    pub role: KubeconfigRole,
}

/// One of the three roles.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct KubeconfigRole {
    /// Full access to the API.
    #[arg(long)]
    pub admin: bool,
    /// The agent of this node: may read everything, and write Events, its own Lease and the status of its own Node.
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
    /// May only read.
    #[arg(long)]
    pub reader: bool,
}
