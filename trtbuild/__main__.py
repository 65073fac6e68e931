from trtbuild.cli.app import main

main()
