//! The agent's image as nodes run it: an OCI archive, a containerd of its own, and what a kubelet makes of a pod.

mod containerd;
mod image;
mod kubelet;
mod mounts;

pub use containerd::Containerd;
pub use image::Image;
pub use kubelet::{Kubelet, Pod};
