//! A vxlan between the nodes, as flannel and other CNI plugins create it: pods of other nodes are behind `vxlan0`.

use anyhow::Result;

use super::address;
use super::node::Node;

/// Creates the node's end of the overlay, with the external addresses of all other nodes.
pub(crate) fn install(node: &Node, others: &[&Node]) -> Result<()> {
    let inside = address::overlay(node.number())?;
    node.netns().ip(&format!(
        "link add vxlan0 type vxlan id 42 dstport 8472 local {outside} dev eth0
         address add {v4}/24 dev vxlan0
         address add {v6}/64 dev vxlan0 nodad
         link set vxlan0 up",
        outside = node.addresses().v4,
        v4 = inside.v4,
        v6 = inside.v6
    ))?;
    for other in others {
        let entry = format!("fdb append 00:00:00:00:00:00 dev vxlan0 dst {}", other.addresses().v4);
        let words: Vec<&str> = entry.split(' ').collect();
        drop(node.netns().tool("bridge", &words)?);
    }
    Ok(())
}
