from forescale.catalogue.clusters import cluster_names, load_cluster


def test_h100_node_and_network():
    cluster = load_cluster("h100-sxm", 256)
    assert cluster.device.matrix_flops.bf16 == 989e12
    assert [tier.size for tier in cluster.tiers] == [8, 0]
    assert [tier.bandwidth for tier in cluster.tiers] == [450e9, 50e9]
    assert "h100-sxm" in cluster_names()
