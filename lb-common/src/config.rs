//! The node's configuration as the agent writes it: the one element of `SETTINGS`, interfaces and addresses.
//!
//! All of it can change while packets flow, so nothing is compiled in.

mod device;
mod filter;
mod node_settings;
mod prefix;
mod service_ranges;
mod settings;

pub use device::Device;
pub use filter::AddressFilter;
pub use node_settings::NodeSettings;
pub use prefix::Prefix;
pub use service_ranges::{RANGES, ServiceRanges};
pub use settings::{Settings, SettingsPair, USUAL_NODE_PORTS};

/// Bits of the values of `ADDRESSES`, keyed by [`crate::addr::Ip`].
pub mod address {
    /// An address of this node.
    pub const NODE: u32 = 1;
    /// `NodePorts` are served on it.
    pub const NODE_PORTS: u32 = 2;
}
